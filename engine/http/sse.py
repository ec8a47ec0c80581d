"""The server-sent stream's edges: its headers, its comments in a silence, and the timer that notices one."""

from __future__ import annotations

import asyncio

from engine.http.event_queue import EventQueue
from engine.http.wire import Header
from engine.protocol import WaitState
from engine.request import Admitted, Event, PrefillProgress, Waiting

_WAITS = {
    WaitState.SLOT: b"slot",
    WaitState.SLOT0: b"slot",
    WaitState.HOME: b"home",
    WaitState.MEMORY: b"memory",
}


class Progress:
    """How far a request has come before its first token: what headers and comments are made of."""

    def __init__(self) -> None:
        self.admitted = False
        self._waiting: Waiting | None = None
        self._prefill: PrefillProgress | None = None
        self._cut: tuple[int, int] | None = None

    def note(self, event: Event) -> None:
        if isinstance(event, Waiting):
            self._waiting = event
        elif isinstance(event, PrefillProgress):
            self._prefill = event
        elif isinstance(event, Admitted):
            self.admitted = True
            self._waiting = None
            if event.cut_from is not None:
                self._cut = (event.cut_from, event.max_tokens)

    def cut_comment(self) -> bytes:
        """For a stream whose headers went out before `max_tokens` was cut."""
        return b"" if self._cut is None else b": max_tokens %d -> %d\n\n" % self._cut

    def headers(self) -> list[Header]:
        headers: list[Header] = []
        if self._waiting is not None:
            headers.append((b"x-tandem-wait", _WAITS[self._waiting.state]))
        if self._cut is not None:
            headers.append((b"x-tandem-max-tokens", b"%d -> %d" % self._cut))
        return headers

    def words(self) -> str:
        """What a silent stream is doing, on one line."""
        if self._waiting is not None:
            return f"waiting: {' '.join(self._waiting.reason.split())}"
        if self._prefill is not None and self._prefill.done < self._prefill.total:
            return f"prefill {self._prefill.done}/{self._prefill.total}"
        return "working"

    def comment(self) -> bytes:
        """The words as a comment, which every client skips."""
        return f": {self.words()}\n\n".encode()


def stream_headers(progress: Progress) -> list[Header]:
    """`x-accel-buffering` keeps a proxy from holding tokens back."""
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        *progress.headers(),
    ]


class HeartbeatTimer:
    """Interrupts a queue's wait once a silence is over its limit. Restarting costs a clock read, not a timer."""

    def __init__(self, queue: EventQueue, after_s: float) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + after_s
        self._arm(self._at)

    def restart(self, after_s: float) -> None:
        self._at = self._loop.time() + after_s
        if self._armed_for > self._at:
            self._handle.cancel()
            self._arm(self._at)

    def _arm(self, at: float) -> None:
        # Kept here: uvloop gives a handle that knows no time where `at` is less than half a millisecond away.
        self._armed_for = at
        self._handle = self._loop.call_at(at, self._ring)

    def due(self) -> bool:
        return self._loop.time() >= self._at

    def close(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        if self.due():
            # Re-armed even so: whoever answers it restarts it, and one that cannot answer now is asked again.
            self._queue.interrupt()
            self._arm(self._loop.time() + 0.25)
        else:
            self._arm(self._at)
