"""The HTTP layer over the real loop and a fake model: faults that only show where both meet."""

from __future__ import annotations

import gc
import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loop import Engine
from engine.execution.rows import RowBatch
from engine.http.body import HEAVY_BYTES, READ_ASIDE_BYTES, Body
from engine.http.stream_handler import StreamHandler
from engine.memory.probe import FixedProbe
from engine.protocol import Health
from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, COMPLETIONS, chat_body, content_of, error_of, events
from tests.support.fake_model import FakeRunner, fake_model, greedy, reading
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until
from tests.support.served import Served, served
from tests.support.sockets import heard_until

WINDOW = 2048
CHUNK = 64
PROMPT = [3, 1, 4, 1, 5]


@dataclass
class Gate:
    """Holds the engine inside a forward: `passes(n)` lets n more through, `open` all."""

    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    held: threading.Event = field(default_factory=threading.Event)
    is_open: bool = True

    def __call__(self, batch: RowBatch) -> None:
        if not self.is_open:
            self.held.set()
            assert self.allowed.acquire(timeout=LONG_S)

    def close(self) -> None:
        self.held.clear()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.allowed.release(1000)


@dataclass
class House:
    """A served engine, the gate in its model, and short words for asking it."""

    server: Served
    engine: Engine
    runner: FakeRunner
    gate: Gate
    client: httpx.Client

    def post(self, **fields: Any) -> httpx.Response:
        return self.client.post(COMPLETIONS, json=body_of(**fields))

    def health(self) -> Health:
        return self.engine.health()

    def running_after_a_pass(self) -> int:
        """Let one pass through; how many requests run then. A request that comes while the engine is held is taken
        in after its pass."""
        self.gate.allowed.release()
        return self.health().parallel.running

    @contextmanager
    def asked(self, *, then: bytes = b"", **fields: Any) -> Iterator[socket.socket]:
        """A request over a bare socket, with `then` right behind it; leaving the block is the client's leaving."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=LONG_S) as opened:
            opened.sendall(request_bytes(**fields) + then)
            yield opened

    def settles(self, *, abandoned: int) -> bool:
        """Whether everything is idle again, the leavers counted, and the books agree."""

        def settled() -> bool:
            parallel = self.health().parallel
            counts = (parallel.running, parallel.waiting, parallel.totals.abandoned)
            # A request ends on the HTTP side's own thread, after what the engine's counts.
            return counts == (0, 0, abandoned) and self.server.app.streams.count == 0

        return wait_until(settled) and self.engine._serving().memory.reservations.outstanding() == 0


def request_bytes(**fields: Any) -> bytes:
    body = json.dumps(body_of(**fields)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def body_of(**fields: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    """Makes served engines; each must have kept its books when the test is over."""
    made: list[tuple[House, Any]] = []

    def make(*, parallel: int = 2, queue_limit: int = 8) -> House:
        gate = Gate()
        runner = FakeRunner(before=gate)
        model = fake_model(runner, WINDOW)
        config = EngineConfig(
            model=Path("fake"),
            model_name="fake",
            parallel=parallel,
            max_len=WINDOW,
            prefill_chunk=CHUNK,
            kv_margin_rows=8,
            queue_limit=queue_limit,
        )
        probe = FixedProbe(reading())
        engine = Engine(config, Parts(load=lambda _config, _progress: model, probe=lambda: probe))
        engine.start()
        assert engine.wait_ready(10)
        serving = served(engine, SERVICE)
        server = serving.__enter__()
        client = httpx.Client(base_url=server.url, timeout=LONG_S, verify=False)
        made.append((House(server, engine, runner, gate, client), serving))
        return made[-1][0]

    yield make
    for one, serving in made:
        one.gate.open()
        one.client.close()
        state = one.engine._serving()
        one.engine.close(10)
        assert state.memory.reservations.outstanding() == 0
        serving.__exit__(None, None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_a_long_read(house: Callable[..., House], stream: bool) -> None:
    """1,500 prompt tokens, gone in the first chunk: no further chunk is read, the slot is free, it is counted."""
    h = house()
    h.gate.close()
    with h.asked(prompt=[7] * 1500, stream=stream):
        assert h.gate.held.wait(LONG_S)
    assert wait_until(lambda: h.server.app.streams.count == 0)
    h.gate.open()
    assert h.settles(abandoned=1)
    assert [sum(one.values()) for one in h.runner.passes] == [CHUNK]
    assert h.post().json()["choices"][0]["text"].split() == [str(token) for token in greedy(PROMPT, 8)]


def test_leaving_a_connection_with_more_requests_on_it(house: Callable[..., House]) -> None:
    """Whatever a client sent ahead does not keep the request that runs from hearing that it left."""
    h = house()
    h.gate.close()
    with h.asked(prompt=[7] * 1500, then=request_bytes(max_tokens=1000) * 4):
        assert h.gate.held.wait(LONG_S)
    assert wait_until(lambda: h.server.app.streams.count == 0)
    h.gate.open()
    assert h.settles(abandoned=1)
    assert [sum(one.values()) for one in h.runner.passes] == [CHUNK]


@pytest.mark.parametrize("more", [request_bytes(), b"\x00 no request\r\n\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_follows_a_running_request_leaves_its_answer_whole(
    house: Callable[..., House], more: bytes, at_once: bool
) -> None:
    """The answer is complete, nothing else is answered, and the connection ends."""
    h = house()
    h.gate.close()
    with h.asked(stream=True, then=more if at_once else b"") as opened:
        assert h.gate.held.wait(LONG_S)
        if not at_once:
            opened.sendall(more)
        h.gate.open()
        received = b""
        while part := opened.recv(4096):
            received += part
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert h.settles(abandoned=0)


def test_leaving_the_queue(house: Callable[..., House]) -> None:
    """Two slots busy, a third waits and leaves: nothing is ever read for it."""
    h = house()
    h.gate.close()
    with h.asked(stream=True, max_tokens=1000), h.asked(stream=True, max_tokens=1000):
        assert h.gate.held.wait(LONG_S)
        assert wait_until(lambda: h.running_after_a_pass() == 2)
        with h.asked(prompt=[9] * 333, stream=True):
            assert wait_until(lambda: h.server.app.streams.count == 3)
        assert wait_until(lambda: h.server.app.streams.count == 2)
        h.gate.open()
    assert h.settles(abandoned=3)
    assert max(sum(one.values()) for one in h.runner.passes) <= len(PROMPT) * 2


def test_leaving_stops_every_choice(house: Callable[..., House]) -> None:
    h = house()
    with h.asked(n=2, stream=True, max_tokens=1000) as opened:
        heard_until(opened, b'"index":1,"text":"')
    assert h.settles(abandoned=1)
    assert h.health().kv_pool.committed_bytes < 1000 * 2 * 4096


def test_pages_answer_while_a_chunk_is_computed(house: Callable[..., House]) -> None:
    h = house()
    h.gate.close()
    with h.asked(prompt=[7] * 1900, stream=True):
        assert h.gate.held.wait(LONG_S)
        for path in ("/health", "/metrics", "/slots", "/v1/status"):
            assert h.client.get(path).status_code == 200
        h.gate.open()
    assert h.settles(abandoned=1)


def test_one_runs_one_waits_four_are_refused(house: Callable[..., House]) -> None:
    h = house(parallel=1, queue_limit=1)
    h.gate.close()
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(h.post())) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(answers) == 4)
    assert {(a.status_code, a.headers["retry-after"], error_of(a)["code"]) for a in answers} == {
        (503, "5", "queue_full")
    }
    h.gate.open()
    for thread in threads:
        thread.join(LONG_S)
    assert sorted(a.status_code for a in answers) == [200, 200, 503, 503, 503, 503]
    assert h.settles(abandoned=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_over_several_tokens(house: Callable[..., House], stream: bool) -> None:
    """No part of the stop is sent; what was held back for a stop that did not come is."""
    h = house()
    words = [str(token) for token in greedy(PROMPT, 8)]
    stop = " ".join(words[2:5])

    def text(**fields: Any) -> tuple[str, str]:
        response = h.post(stream=stream, **fields)
        if not stream:
            choice = response.json()["choices"][0]
            return choice["text"], choice["finish_reason"]
        chunks = events(response.text)
        return content_of(chunks), chunks[-2]["choices"][0]["finish_reason"]

    assert text(stop=[stop]) == (" ".join(words[:2]) + " ", "stop")
    assert text(stop=[stop + " never"], max_tokens=5) == (" ".join(words[:5]) + " ", "length")


def test_a_stop_that_spells_a_control_token(house: Callable[..., House]) -> None:
    """Generation ends where the model writes the token, which adds no text, also where end tokens are ignored."""
    h = house()
    words = greedy(PROMPT, 8)
    choice = h.post(stop=["never", f"<{words[3]}>"]).json()["choices"][0]
    assert choice["text"] == "".join(f"{word} " for word in words[: words.index(words[3])])
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_around_the_window(house: Callable[..., House], stream: bool) -> None:
    h = house()
    fits = h.post(prompt=[7] * (WINDOW - 1), max_tokens=50, stream=stream)
    assert fits.status_code == 200
    assert fits.headers["x-tandem-max-tokens"] == "50 -> 1"
    if not stream:
        assert fits.json()["usage"]["completion_tokens"] == 1
        assert fits.json()["choices"][0]["finish_reason"] == "length"
    for length in (WINDOW, WINDOW + 1, WINDOW * 3 // 2):
        refused = h.post(prompt=[7] * length, stream=stream)
        assert refused.status_code == 400
        error = error_of(refused)
        assert error["code"] == "context_length_exceeded"
        assert f"{length:,}" in error["message"]
        assert f"{WINDOW:,}" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_request_is_freed_without_the_collector(house: Callable[..., House], stream: bool) -> None:
    """Frames that hold their own error are a ring; with megabytes in each, waiting for the collector is a leak."""
    h = house()

    def streams() -> int:
        return sum(type(thing) is StreamHandler for thing in gc.get_objects())

    before = streams()
    gc.disable()
    try:
        for _ in range(3):
            assert h.post(prompt=[7] * WINDOW, stream=stream).status_code == 400
        assert wait_until(lambda: streams() <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize("padding", [0, READ_ASIDE_BYTES, HEAVY_BYTES])
def test_a_body_is_let_go_while_its_answer_runs(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    """An answer may run for an hour: what it was asked with is not kept for it."""

    class Watched(bytearray):
        """Bytes that can be watched."""

    bodies: list[weakref.ref[Watched]] = []
    take = Body.take

    def watched(body: Body) -> Watched:
        data = Watched(take(body))
        bodies.append(weakref.ref(data))
        return data

    monkeypatch.setattr(Body, "take", watched)
    h = house()
    h.gate.close()
    with h.asked(max_tokens=1000, note="x" * padding):
        assert h.gate.held.wait(LONG_S)
        assert len(bodies) == 1
        assert wait_until(lambda: bodies[0]() is None)
    h.gate.open()
    assert h.settles(abandoned=1)


def test_freed_memory_goes_back_after_a_large_body_alone(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[None] = []
    monkeypatch.setattr("engine.http.body.return_free_memory", lambda: trimmed.append(None))
    h = house()
    assert h.post(note="x" * READ_ASIDE_BYTES).status_code == 200
    assert trimmed == []
    assert h.post(note="x" * HEAVY_BYTES).status_code == 200
    assert h.post(note="x" * HEAVY_BYTES, prompt=[7] * WINDOW).status_code == 400
    assert len(trimmed) == 2


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e308},
    {"temperature": 1e-4},
    {"temperature": 1.1e-5},
    {"repetition_penalty": 100},
    {"repetition_penalty": 0.01},
    {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 100},
    {"top_k": (1 << 63) - 1},
    {"top_p": 1e-300},
    {"min_p": 1},
    {"seed": (1 << 63) - 1},
    {"seed": -(1 << 63)},
    {"max_tokens": (1 << 63) - 1, "prompt": [7] * 2040},
    {"logit_bias": {str(token): -100 for token in range(512)}},
    {"logit_bias": {"511": 100}},
    {"logprobs": 5, "top_k": 1},
    {"logprobs": 5, "temperature": 1e300},
    {"n": 8},
    {"stop": [str(number) for number in range(16)]},
]


def test_the_limits_of_every_field_are_servable(house: Callable[..., House]) -> None:
    """What validation lets through, sampling can compute: greedy and sampled, never a server error."""
    h = house()
    for fields in EXTREMES:
        for temperature in (0, 1):
            response = h.post(**{"temperature": temperature, "max_tokens": 4, "seed": 3, **fields})
            assert response.status_code == 200, (fields, response.text)


def test_chat_with_a_model_that_has_no_template(house: Callable[..., House]) -> None:
    h = house()
    refused = h.client.post(CHAT, json=chat_body())
    assert (refused.status_code, error_of(refused)["code"]) == (400, "no_chat_template")
    assert "/v1/completions" in error_of(refused)["message"]
    assert h.post().status_code == 200


def test_cached_tokens_are_the_truth(house: Callable[..., House]) -> None:
    """The same prompt again: all but its last token are resumed, with the same greedy text."""
    h = house()
    prompt = [7, 8, 9] * 20
    first, again = (h.post(prompt=prompt).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
    assert first["choices"] == again["choices"]


def test_a_waiting_stream_says_so(house: Callable[..., House]) -> None:
    h = house(parallel=1)
    h.gate.close()
    with h.asked(max_tokens=1000, stream=True):
        assert h.gate.held.wait(LONG_S)
        h.gate.allowed.release(3)
        assert wait_until(lambda: h.health().parallel.running == 1)
        with h.asked(stream=True) as waiting:
            assert wait_until(lambda: h.server.app.streams.count == 2)
            h.gate.allowed.release(5)
            received = heard_until(waiting, b": waiting: the only slot is busy\n\n")
            assert b"x-tandem-wait: slot" in received
        h.gate.open()
    assert h.settles(abandoned=2)
