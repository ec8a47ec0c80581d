"""Streams that wait, read, fall silent, fail or lose their client, in every phase."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from engine.protocol import WaitState
from engine.request import (
    Admitted,
    Done,
    Ending,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    RequestError,
    Text,
    Waiting,
)
from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, chat_body, comments, content_of, error_of, events
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket, wait_until
from tests.support.served import Served, served
from tests.support.sockets import heard_until


@contextmanager
def asked(server: Served, *, stream: bool = True, n: int = 1) -> Iterator[socket.socket]:
    """A request sent over a bare socket, so that the test decides when the client leaves."""
    body = json.dumps(chat_body(stream=stream, n=n, max_tokens=1000)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as opened:
        opened.sendall(head.encode() + body)
        yield opened


def hold(ticket: Ticket) -> None:
    """Say nothing until the client has left."""
    ticket.cancelled.wait(LONG_S)


def test_headers_wait_for_admission(client: httpx.Client, engine: ScriptedEngine) -> None:
    """Admitted within the limit: no waiting header, and what was cut is said in a header."""

    def script(ticket: Ticket) -> None:
        ticket.put(Waiting(WaitState.SLOT, "all 2 slots are busy"), Admitted(1, 0, 100, cut_from=1000))
        ticket.finish("x")

    engine.script = script
    response = client.post(CHAT, json=chat_body(stream=True, max_tokens=1000))
    assert "x-tandem-wait" not in response.headers
    assert response.headers["x-tandem-max-tokens"] == "1000 -> 100"
    assert comments(response.text) == []


def test_whole_answer_says_what_was_cut(client: httpx.Client, engine: ScriptedEngine) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(1, 0, 100, cut_from=1000))
        ticket.finish("x")

    engine.script = script
    assert client.post(CHAT, json=chat_body(max_tokens=1000)).headers["x-tandem-max-tokens"] == "1000 -> 100"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (WaitState.SLOT, "slot"),
        (WaitState.SLOT0, "slot"),
        (WaitState.HOME, "home"),
        (WaitState.MEMORY, "memory"),
    ],
)
def test_a_waiting_stream_opens_and_says_why(
    client: httpx.Client, engine: ScriptedEngine, state: WaitState, word: str
) -> None:
    go = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Waiting(state, "memory is almost full,\n2 GiB are missing"))
        go.wait(LONG_S)
        ticket.put(Admitted(0, 0, 50, cut_from=60))
        ticket.finish("x")

    engine.script = script
    with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
        assert response.headers["x-tandem-wait"] == word
        lines = response.iter_lines()
        assert next(lines) == ": waiting: memory is almost full, 2 GiB are missing"
        assert next(lines) == ""
        assert next(lines).startswith(": waiting: "), "a silence is broken by another comment"
        go.set()
        rest = "\n".join(lines)
    assert comments(rest)[-1] == "max_tokens 60 -> 50"
    assert content_of(events(rest)) == "x"


def test_status_that_people_see(engine: ScriptedEngine) -> None:
    """Opt-in: the wait also comes as reasoning, after the role and before the text, and is not taken back in."""
    go = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Waiting(WaitState.SLOT, "all 2 slots are busy"))
        go.wait(LONG_S)
        ticket.put(Admitted(0, 0, 50))
        ticket.finish("x")

    engine.script = script
    with (
        served(engine, replace(SERVICE, visible_status=True)) as seen,
        httpx.stream("POST", seen.url + CHAT, json=chat_body(stream=True)) as response,
    ):
        lines = response.iter_lines()
        opening = [next(line for line in lines if line.startswith("data: ")) for _ in range(2)]
        go.set()
        chunks = events("\n".join([*opening, *lines]))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[1]["choices"][0]["delta"] == {"reasoning_content": "waiting: all 2 slots are busy\n"}
    assert content_of(chunks) == "x"
    assert sum("role" in choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]) == 1
    engine.reset()
    turn = {"role": "assistant", "content": "x", "reasoning_content": "waiting: all 2 slots are busy\n"}
    with served(engine, SERVICE) as plain:
        messages = [*chat_body()["messages"], turn, {"role": "user", "content": "go on"}]
        assert httpx.post(plain.url + CHAT, json=chat_body(messages=messages)).status_code == 200
    assert engine.template.calls[-1]["messages"][1] == {"role": "assistant", "content": "x"}


def test_a_long_read_is_commented(client: httpx.Client, engine: ScriptedEngine) -> None:
    go = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 50), PrefillProgress(128, 1000))
        go.wait(LONG_S)
        ticket.put(PrefillProgress(1000, 1000))
        ticket.finish("x")

    engine.script = script
    with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
        lines = response.iter_lines()
        assert '"role":"assistant"' in next(lines), "the answer opens at admission"
        assert next(line for line in lines if line.startswith(":")) == ": prefill 128/1000"
        go.set()
        assert list(lines)[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "retry_after"),
    [
        (503, "queue_full", 5),
        (503, "loading", 2),
        (429, "queue_timeout", 10),
        (400, "too_large", None),
    ],
)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_refusals_before_headers(
    client: httpx.Client,
    engine: ScriptedEngine,
    stream: bool,
    status: int,
    code: str,
    retry_after: int | None,
    when: str,
) -> None:
    error = RequestError("no", status=status, code=code, retry_after=retry_after)
    if when == "at once":
        engine.refusal = error
    else:
        engine.script = lambda ticket: ticket.put(Waiting(WaitState.SLOT, "busy"), Failed(error))
    response = client.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == status
    assert error_of(response)["code"] == code
    assert response.headers.get("retry-after") == (None if retry_after is None else str(retry_after))


def read_slowly(client: httpx.Client, seen: threading.Event) -> httpx.Response:
    """A stream read whole; `seen` is set once its first line is here, so its headers have gone out."""
    with client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
        parts = []
        for part in response.iter_raw():
            parts.append(part)
            seen.set()
    return httpx.Response(response.status_code, headers=response.headers, text=b"".join(parts).decode())


def test_a_refusal_after_headers_is_one_event(client: httpx.Client, engine: ScriptedEngine) -> None:
    seen = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 10), Text(0, "par", 1))
        seen.wait(LONG_S)
        ticket.put(Failed(RequestError("the page could not be committed", status=503, code="memory")))
        ticket.put(Text(0, "never", 1))

    engine.script = script
    response = read_slowly(client, seen)
    assert response.status_code == 200
    *_, text, last = events(response.text)
    assert text["choices"][0]["delta"]["content"] == "par"
    assert last == {
        "error": {
            "message": "the page could not be committed",
            "type": "unavailable_error",
            "param": None,
            "code": "memory",
        }
    }
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["silent", "waiting", "reading", "decoding"])
def test_a_client_that_leaves_cancels(server: Served, engine: ScriptedEngine, stream: bool, phase: str) -> None:
    """In every phase, streamed or not, both choices included, and nothing of the request stays in the HTTP layer."""
    begun = threading.Event()

    def script(ticket: Ticket) -> None:
        if phase == "waiting":
            ticket.put(Waiting(WaitState.SLOT, "busy"))
        if phase in ("reading", "decoding"):
            ticket.put(Admitted(0, 0, 10), PrefillProgress(1, 5))
        begun.set()
        while phase == "decoding" and not ticket.cancelled.wait(0.002):
            ticket.put(Text(0, "a", 1), Text(1, "b", 1))
        ticket.cancelled.wait(LONG_S)

    engine.script = script
    with asked(server, stream=stream, n=2):
        assert begun.wait(LONG_S)
    assert wait_until(lambda: engine.tickets[0].cancelled.is_set())
    assert wait_until(lambda: server.app.streams.count == 0)


def test_a_client_that_left_before_the_hand_over_is_not_submitted(server: Served, engine: ScriptedEngine) -> None:
    """Half a body, then gone."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as opened:
        opened.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{{".encode())
    assert httpx.get(server.url + "/v1/status").status_code == 200
    assert engine.tickets == []
    assert server.app.streams.count == 0


def test_a_finished_request_is_not_cancelled(client: httpx.Client, server: Served, engine: ScriptedEngine) -> None:
    assert client.post(CHAT, json=chat_body(stream=True)).status_code == 200
    assert client.post(CHAT, json=chat_body()).status_code == 200
    assert wait_until(lambda: server.app.streams.count == 0)
    assert not any(ticket.cancelled.is_set() for ticket in engine.tickets)


def test_a_client_that_does_not_read_neither_stops_nor_loses_anything(
    server: Served, client: httpx.Client, engine: ScriptedEngine
) -> None:
    """The engine writes far more than socket buffers hold while nobody reads; others are served; all of it arrives."""
    piece = "0123456789" * 100
    count = 12_000
    written = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, count))
        for _ in range(count):
            ticket.put(Text(0, piece, 1))
        written.set()
        ticket.put(Finished(0, FinishReason.LENGTH, count), Done(1, 0, count))

    engine.script = script
    with asked(server) as slow:
        assert written.wait(LONG_S), "the engine never waits for a client"
        engine.reset()
        assert client.post(CHAT, json=chat_body()).status_code == 200
        received = heard_until(slow, lambda heard: b"[DONE]" in heard[-100:])
    assert received.count(b"0123456789") == count * 100


def test_a_fault_while_writing_ends_only_its_stream(client: httpx.Client, engine: ScriptedEngine) -> None:
    seen = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 10))
        if ticket.request.stream:
            seen.wait(LONG_S)
        ticket.put(Text(7, "a choice nobody asked for", 1))

    engine.script = script
    response = read_slowly(client, seen)
    assert events(response.text)[-1]["error"]["code"] == "internal_error"
    assert wait_until(engine.tickets[0].cancelled.is_set)
    whole = client.post(CHAT, json=chat_body())
    assert whole.status_code == 500
    assert error_of(whole)["code"] == "internal_error"
    engine.reset()
    assert client.post(CHAT, json=chat_body()).status_code == 200


def test_ending_all_reaches_every_phase(client: httpx.Client, server: Served, engine: ScriptedEngine) -> None:
    """What a service does when its drain is over: a final event on a stream, a status for the rest, all cancelled."""
    seen = threading.Event()
    answers: dict[str, httpx.Response] = {}

    def script(ticket: Ticket) -> None:
        if ticket.request.stream:
            ticket.put(Admitted(0, 0, 10), Text(0, "par", 1))
        hold(ticket)

    engine.script = script
    threads = [
        threading.Thread(target=lambda: answers.update(whole=client.post(CHAT, json=chat_body()))),
        threading.Thread(target=lambda: answers.update(streamed=read_slowly(client, seen))),
    ]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(engine.tickets) == 2)
    assert seen.wait(LONG_S)
    server.app.streams.end_all(RequestError("over", status=503, code="draining", retry_after=5), Ending.TIMEOUT)
    for thread in threads:
        thread.join(LONG_S)
    assert answers["whole"].status_code == 503
    assert answers["whole"].headers["retry-after"] == "5"
    assert events(answers["streamed"].text)[-1]["error"]["code"] == "draining"
    # Not as if their clients had left.
    assert [ticket.ending for ticket in engine.tickets] == [Ending.TIMEOUT] * 2
