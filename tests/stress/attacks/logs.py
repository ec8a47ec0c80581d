"""Streams that nobody reads, and a reader that comes and goes: log lines are lost, requests are not."""

from __future__ import annotations

import os
import pty
import signal
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.stress.attacks.harness import Harness, RealEngine, Result, Watch

REQUESTS = 200
END_S = 20.0


def run(harness: Harness) -> list[Result]:
    return [*_full_pipe(harness), *_held_terminal(harness)]


def _full_pipe(harness: Harness) -> list[Result]:
    with _pipe() as (reading, writing):
        _fill(writing)
        with harness.another(output=writing) as other:
            with other.watch("a pipe that nobody reads", f"{REQUESTS} short requests") as unread:
                dropped = _served(other.engine, unread)
                unread.expect(dropped > 0, "no line was dropped, though nobody reads")
                unread.note(f"{dropped} lines dropped")
            with other.watch("a reader that comes back", f"{REQUESTS} short requests") as read:
                os.set_blocking(reading, False)
                got = _read_for(reading, 2.0)
                _served(other.engine, read)
                got += _read_for(reading, 2.0)
                read.expect(b"lines are missing here" in got, "no line says how many are missing")
            # Full again: its end, too, has lines that nobody reads.
            _fill(writing)
            _end(other.engine, read, signal.SIGTERM)
    return [unread.result, read.result]


def _held_terminal(harness: Harness) -> list[Result]:
    """As after Ctrl-S."""
    controller, terminal = pty.openpty()
    try:
        with harness.another(output=terminal) as other:
            termios.tcflow(terminal, termios.TCOOFF)
            with other.watch("a terminal held by Ctrl-S", f"{REQUESTS} short requests") as watch:
                dropped = _served(other.engine, watch)
                watch.note(f"{dropped} lines dropped")
            _end(other.engine, watch, signal.SIGTERM)
    finally:
        os.close(controller)
        os.close(terminal)
    return [watch.result]


def _served(engine: RealEngine, watch: Watch) -> int:
    """Send the requests, each of which must be answered; returns how many log lines are lost by now."""
    for number in range(REQUESTS):
        answer = engine.post("/v1/completions", {"prompt": f"Number {number}", "max_tokens": 1}, timeout_s=10.0)
        watch.expect(answer.status == 200, f"request {number} got {answer.status}")
    dropped: int = engine.health()["log"]["dropped"]
    return dropped


def _end(engine: RealEngine, watch: Watch, number: signal.Signals) -> None:
    """The signal ends the process, whatever its streams do."""
    os.kill(engine.pid, number)
    deadline = time.monotonic() + END_S
    while engine.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    watch.expect(not engine.alive, f"{number.name} did not end it within {END_S:g} s")


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _fill(descriptor: int) -> None:
    """Leave no room in the pipe, whose other holders keep their setting."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(own, b"x" * 4095 + b"\n")
    os.close(own)


def _read_for(descriptor: int, seconds: float) -> bytes:
    """What comes out of the pipe in that time."""
    got, over_at = b"", time.monotonic() + seconds
    while time.monotonic() < over_at:
        with suppress(BlockingIOError):
            got += os.read(descriptor, 1 << 16)
        time.sleep(0.005)
    return got
