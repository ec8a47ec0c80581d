"""Clients that hold connections for nothing: idle ones, heads and bodies that trickle, answers that nobody reads."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from engine.process.descriptors import raise_limit
from engine.process.owner_socket import connect
from tests.stress.attacks.harness import Harness, RealEngine, Result, Watch
from tests.stress.real_engine import DESCRIPTORS, read_answer

CONNECTIONS = 1500
SLOW_BODIES = 900
SILENT_READERS = 200
STREAMS = 12
HOLD_S = 8.0
SHORT_LIMITS = {"TANDEM_HEAD_TIMEOUT": "3", "TANDEM_STALL_TIMEOUT": "4"}


def run(harness: Harness) -> list[Result]:
    raise_limit()
    return [_idle(harness), *_slow(harness)]


def _idle(harness: Harness) -> Result:
    engine = harness.engine
    with harness.watch("idle connections", f"{CONNECTIONS} without a key, {HOLD_S:g} s") as watch, _many() as many:
        many.open(engine, CONNECTIONS, b"")
        _until_over(engine, watch, many)
    return watch.result


def _slow(harness: Harness) -> Iterator[Result]:
    with harness.another(environment=SHORT_LIMITS) as other:
        engine = other.engine
        with (
            other.watch("heads that trickle", f"{CONNECTIONS} without a key, a line a second") as watch,
            _many() as many,
        ):
            many.open(engine, CONNECTIONS, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            _until_over(engine, watch, many, many.trickle(b"X-More: 1\r\n"))
            many.all_ended(watch)
        yield watch.result
        with other.watch("bodies that trickle", f"{SLOW_BODIES} with a key, a byte a second") as watch, _many() as many:
            many.open(engine, SLOW_BODIES, engine.head("POST", "/v1/completions", length=10_000) + b'{"')
            _until_over(engine, watch, many, many.trickle(b" "))
            many.all_ended(watch)
        yield watch.result
        sent = f"{SILENT_READERS} ask /health for ever and read nothing, {STREAMS} streams nobody reads"
        with other.watch("answers that nobody reads", sent) as watch, _many() as many:
            streamed = {"prompt": "Hello", "max_tokens": 200, "temperature": 0, "stream": True, "logprobs": 5}
            body = json.dumps(streamed).encode()
            many.open(engine, STREAMS, engine.head("POST", "/v1/completions", length=len(body)) + body, buffer=4096)
            many.open(engine, SILENT_READERS, b"", buffer=4096)
            question = engine.head("GET", "/health", secret=engine.metrics)
            _until_over(engine, watch, many, many.trickle(question, every_s=0.02), hold_s=20.0)
            watch.note(f"{many.ended()} of {len(many.sockets)} cut")
        yield watch.result


class _Many:
    """The attacker's connections."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self._gone: set[socket.socket] = set()

    def open(self, engine: RealEngine, count: int, first: bytes, *, buffer: int | None = None) -> None:
        """Open connections, each of which sends `first`; those that are refused count as ended."""
        for _ in range(count):
            opened = socket.socket()
            opened.settimeout(5.0)
            if buffer is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self.sockets.append(opened)
            try:
                opened.connect(("127.0.0.1", engine.port))
                opened.sendall(first)
            except OSError:
                self._gone.add(opened)
            opened.setblocking(False)

    def trickle(self, more: bytes, *, every_s: float = 1.0) -> Callable[[], None]:
        """Sends `more` on each connection that is still there, at most once in `every_s`."""
        last = 0.0

        def send() -> None:
            nonlocal last
            if time.monotonic() - last < every_s:
                return
            last = time.monotonic()
            for opened in self.sockets:
                if opened in self._gone:
                    continue
                try:
                    opened.send(more)
                except BlockingIOError:
                    continue
                except OSError:
                    self._gone.add(opened)

        return send

    def ended(self) -> int:
        """How many the engine has ended, whatever it said before."""
        with selectors.DefaultSelector() as selector:
            for opened in self.sockets:
                if opened not in self._gone:
                    selector.register(opened, selectors.EVENT_READ)
            for key, _ in selector.select(0):
                opened = key.fileobj
                assert isinstance(opened, socket.socket)
                try:
                    while opened.recv(1 << 16):
                        pass
                    self._gone.add(opened)
                except BlockingIOError:
                    continue
                except OSError:
                    self._gone.add(opened)
        return len(self._gone)

    def all_ended(self, watch: Watch) -> None:
        left = len(self.sockets) - self.ended()
        watch.expect(left == 0, f"{left} of {len(self.sockets)} connections were still there after their time limit")


@contextmanager
def _many() -> Iterator[_Many]:
    made = _Many()
    with ExitStack() as stack:
        yield made
        for opened in made.sockets:
            stack.enter_context(opened)


def _until_over(
    engine: RealEngine, watch: Watch, many: _Many, also: Callable[[], None] | None = None, *, hold_s: float = HOLD_S
) -> None:
    """Look in as a new client and as the owner, over and over, while the attack goes on."""
    most, worst, looks = 0, 0.0, 0
    over = time.monotonic() + hold_s
    while time.monotonic() < over:
        began = time.monotonic()
        answer = engine.get("/health")
        worst = max(worst, time.monotonic() - began)
        watch.expect(answer.status == 200, f"a newcomer's /health got {answer.status}")
        watch.expect(_asked_by_owner(engine) == 200, "the owner's socket did not answer")
        most = max(most, engine.descriptors())
        looks += 1
        if also is not None:
            also()
        time.sleep(0.02)
    watch.expect(most < DESCRIPTORS - 100, f"{most} descriptors of {DESCRIPTORS}")
    watch.expect(worst <= 1.0, f"a newcomer's /health took {worst:.2f} s")
    watch.note(f"at most {most} descriptors; {looks} newcomers, the slowest answered in {worst:.2f} s")


def _asked_by_owner(engine: RealEngine) -> int:
    with connect(str(engine.state_dir / "engine.sock"), 5.0) as opened:
        opened.sendall(engine.head("GET", "/health", secret=""))
        return read_answer(opened).status
