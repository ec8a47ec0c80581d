"""The HTTP side of the commands: streams as they come, refusals in the engine's words, chat, status."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.config import ServiceConfig
from engine.process.keyring import Secret, digest, write_secrets
from engine.process.owner_socket import owner_socket
from engine.process.state_dir import ServiceRecord
from engine.protocol import LedgerState, WaitState
from engine.request import Admitted, Failed, FinishReason, PrefillProgress, RequestError, Text, Waiting
from tandem.cli import run
from tandem.client.chat_stream import AnswerEnd, AnswerEvent, ChatMessage, ChatRequest, TextPart, WaitNote, open_chat
from tandem.client.wire import (
    Address,
    Comment,
    Data,
    NoAnswer,
    Opened,
    Refused,
    StreamEvent,
    _events,
    get,
    post,
    refusal,
    stream,
)
from tandem.exits import CommandError, Exit
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket
from tests.support.served import served


@contextmanager
def answering(*chunks: bytes) -> Iterator[Address]:
    """A server that answers one request with these bytes, each sent on its own, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                for chunk in chunks:
                    connection.sendall(chunk)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address.of(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(LONG_S)


def events_of(address: Address) -> list[StreamEvent]:
    async def collect() -> list[StreamEvent]:
        async with stream(address, "/x", b"{}") as events:
            return [event async for event in events]

    return asyncio.run(collect())


async def said(address: Address) -> list[AnswerEvent]:
    async with open_chat(address, ChatRequest((ChatMessage("user", "hi"),))) as answers:
        return [answer async for answer in answers]


def test_an_engine_of_this_user_is_asked_through_its_socket(tmp_path: Path) -> None:
    """Keys and tokens are for others; once the socket is gone, this is another."""
    secrets = tmp_path / "secrets.json"
    write_secrets(secrets, (Secret("phone", digest(b"key"), 0.0), Secret("admin", digest(b"token"), 0.0)))
    with (
        owner_socket(tmp_path) as owner,
        served(ScriptedEngine(), ServiceConfig(secrets_file=secrets), owner) as server,
    ):
        assert owner is not None
        record = ServiceRecord(pid=1, url=server.url, started=0.0, version="0", socket=str(owner.path))
        address = Address.of_engine(record)
        assert post(address, "/admin/drain")[0] == 200
        assert post(address, "/admin/resume")[0] == 200
        assert asyncio.run(said(address))
        owner.path.unlink()
        assert post(address, "/admin/drain")[0] == 403
        with pytest.raises(Refused, match="401 invalid_api_key"):
            asyncio.run(said(address))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Tandem-Wait: slot\r\n"


def chunked(*parts: bytes) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]


def test_events_split_anywhere_are_put_together() -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    body = chunked(b": wait", b"ing\n", b'\ndata: {"a"', b":1}\r\n\r\ndata:{}\n\n: more\n\nda", b"ta: [DONE]\n\n")
    with answering(head[:20], head[20:], *body) as address:
        opened, *rest = events_of(address)
    assert isinstance(opened, Opened)
    assert opened.headers["x-tandem-wait"] == "slot"
    assert rest == [Comment("waiting"), Data(b'{"a":1}'), Data(b"{}"), Comment("more")]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(1, 400), max_size=12),
    bodies=st.lists(
        st.one_of(st.just(b": a wait"), st.binary(max_size=20).map(lambda raw: b"data:" + raw.hex().encode()))
    ),
)
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int], bodies: list[bytes]) -> None:
    text = b"".join(line + b"\n\n" for line in [*bodies, b"data: [DONE]"])
    wire = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunked(text[:7], text[7:]))

    async def read(pieces: list[bytes]) -> list[StreamEvent]:
        reader = asyncio.StreamReader()
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        return [event async for event in _events(Address.of("box"), reader)]

    edges = sorted({min(cut, len(wire)) for cut in cuts} | {0, len(wire)})
    pieces = [wire[a:b] for a, b in pairwise(edges)]
    events = asyncio.run(read(pieces))
    wanted = [Comment(line[1:].strip().decode()) if line[:1] == b":" else Data(line[5:]) for line in bodies]
    assert events[1:] == wanted


@pytest.mark.parametrize("framing", [b"Connection: close\r\n\r\n", b"Content-Length: 15\r\n\r\n"])
def test_a_body_without_chunks(framing: bytes) -> None:
    with answering(HEAD + framing, b"data: [DONE]\n\n\n") as address:
        assert len(events_of(address)) == 1


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunked(b"data: {}\n\n")], "without its last event"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"20\r\ndata"], "in the middle of an answer"),
        ([HEAD + b"Connection: close\r\n\r\n", b"data: {}\n\n"], "without its last event"),
        ([b"SSH-2.0-server\r\n\r\n"], "does not speak HTTP"),
        ([b"HTTP/1.1 502 Bad\r\nContent-Length: 9\r\n\r\nno server"], "502"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], "is no HTTP"),
        ([], "in the middle of an answer"),
    ],
)
def test_a_broken_answer_is_one_clear_error(chunks: list[bytes], words: str) -> None:
    with answering(*chunks) as address, pytest.raises(CommandError, match=words):
        events_of(address)


def test_nothing_there() -> None:
    with pytest.raises(NoAnswer) as refused:
        get(Address.of("http://127.0.0.1:9"), "/health")
    assert refused.value.code == Exit.NOT_RUNNING


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://box/v1", "http://box"),
        ("https://box/tandem/v1/", "https://box/tandem"),
    ],
)
def test_an_address(given: str, url: str) -> None:
    assert Address.of(given).url == url


@pytest.mark.parametrize(
    "given", ["http://a b", "http://box/a b", "http://box/\n", "http://..", f"http://{'a' * 64}", ""]
)
def test_what_no_request_can_be_sent_to_is_no_address(given: str) -> None:
    with pytest.raises(CommandError, match="--url is ") as refused:
        Address.of(given)
    assert refused.value.code == Exit.USAGE


@pytest.mark.parametrize("variable", ["TANDEM_METRICS_TOKEN", "TANDEM_ADMIN_TOKEN"])
def test_a_token_that_no_header_can_hold_is_named_and_not_shown(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("qz\nqz", "qz\u20acqz"):
        monkeypatch.setenv(variable, token)
        with pytest.raises(CommandError, match=f"{variable} is a secret") as refused:
            get(Address.of("http://127.0.0.1:9"), "/health")
        assert refused.value.code == Exit.USAGE
        assert "qz" not in refused.value.message


def answers_of(engine: ScriptedEngine, question: ChatRequest) -> list[AnswerEvent]:
    async def collect(url: str) -> list[AnswerEvent]:
        async with open_chat(Address.of(url), question) as answers:
            return [answer async for answer in answers]

    with served(engine, ServiceConfig()) as there:
        return asyncio.run(collect(there.url))


HELLO = ChatRequest((ChatMessage("user", "hi"),), max_tokens=5)


def test_an_answer_as_it_comes() -> None:
    *pieces, end = answers_of(ScriptedEngine(), HELLO)
    assert [piece for piece in pieces if isinstance(piece, TextPart)] == [TextPart("Hello"), TextPart(" world")]
    assert isinstance(end, AnswerEnd)
    assert end.finish == "stop"
    assert end.usage is not None
    assert end.usage.completion_tokens == 2


def test_a_wait_is_told_before_the_text() -> None:
    def waits(ticket: Ticket) -> None:
        ticket.put(Waiting(WaitState.SLOT, "all 2 slots are busy"))
        ticket.cancelled.wait(1.3)
        ticket.put(Admitted(0, 0, 5), PrefillProgress(1, 1))
        ticket.finish("now")

    first, *rest = answers_of(ScriptedEngine(waits), HELLO)
    assert first == WaitNote("waiting for slot")
    assert TextPart("now") in rest


def test_a_refusal_has_the_engines_words() -> None:
    engine = ScriptedEngine()
    engine.refusal = RequestError("all is full", status=503, code="queue_full", retry_after=5)
    with pytest.raises(Refused, match=r"503 queue_full\): all is full") as refused:
        answers_of(engine, HELLO)
    assert (refused.value.status, refused.value.error_code) == (503, "queue_full")


def test_a_page_that_no_engine_wrote_is_one_line() -> None:
    said = refusal(501, b"<html>\n  <p>Unsupported method\n</html>" + b" " * 9000).message
    assert said == "the engine refused (501): <html> <p>Unsupported method </html> (is it an engine?)"


def test_a_failure_within_the_stream() -> None:
    def fails(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 5), Text(0, "so far", 1))
        ticket.put(Failed(RequestError("the slot was lost", status=500, code="internal")))

    with pytest.raises(Refused, match="the slot was lost"):
        answers_of(ScriptedEngine(fails), HELLO)


def test_leaving_the_block_cancels() -> None:
    def writes_on(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 100))
        while not ticket.cancelled.wait(0.01):
            ticket.put(Text(0, "x", 1))

    async def leave(url: str) -> None:
        async with open_chat(Address.of(url), HELLO) as answers:
            async for answer in answers:
                if isinstance(answer, TextPart):
                    return

    engine = ScriptedEngine(writes_on)
    with served(engine, ServiceConfig()) as there:
        asyncio.run(leave(there.url))
        assert engine.tickets[0].cancelled.wait(LONG_S)


def test_chat_prints_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with served(ScriptedEngine(), ServiceConfig()) as there:
        assert run(["chat", "hi", "--url", there.url]) == Exit.OK
        assert capsys.readouterr().out == "Hello world\n"
        assert run(["chat", "hi", "--url", there.url, "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["text"], shown["finish"]) == ("Hello world", "stop")


def test_chat_sends_what_was_asked() -> None:
    engine = ScriptedEngine()
    with served(engine, ServiceConfig()) as there:
        words = ["--system", "Be brief.", "--max-tokens", "7", "--temperature", "0", "--seed", "3"]
        assert run(["chat", "hi", "--url", there.url, *words]) == Exit.OK
    assert (engine.last.max_tokens, engine.last.sampling.temperature, engine.last.sampling.seed) == (7, 0.0, 3)
    assert engine.template.calls[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_a_cut_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def cuts(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 2, cut_from=9), PrefillProgress(1, 1))
        ticket.finish("no", " room", reason=FinishReason.LENGTH)

    with served(ScriptedEngine(cuts), ServiceConfig()) as there:
        assert run(["chat", "hi", "--url", there.url]) == Exit.OK
    assert "max_tokens 9 -> 2" in capsys.readouterr().err


def test_status_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with served(ScriptedEngine(), ServiceConfig()) as there:
        assert run(["status", "--url", there.url]) == Exit.OK
        words = capsys.readouterr().out
        assert run(["status", "--url", there.url, "--json"]) == Exit.OK
    assert words.startswith("ok: scripted on cpu at http://127.0.0.1:")
    assert "0 of 2 busy" in words
    assert json.loads(capsys.readouterr().out)["contract"] == "tandem-health-1"


def test_status_says_what_keeps_the_ledger_from_being_written(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()
    engine.snapshot = replace(engine.snapshot, ledger=LedgerState(enabled=True, defect="the disk is full"))
    with served(engine, ServiceConfig()) as there:
        assert run(["status", "--url", there.url]) == Exit.OK
    assert "ledger   not written: the disk is full\n" in capsys.readouterr().out
