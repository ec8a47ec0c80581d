"""Events on their way from the engine thread to the event loop: one wake-up for many, bounded for a slow client."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from threading import Lock

from engine.request import Event, PrefillProgress, Text, TokenLogprob, Waiting

MERGE_ABOVE = 32
"""Events that may lie undelivered before further text is merged into what lies there already."""


@dataclass(slots=True)
class _Pieces:
    """Text events of one choice that became one because their client reads slowly."""

    choice: int
    texts: list[str]
    tokens: int
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @classmethod
    def of(cls, event: Text) -> _Pieces:
        return cls(event.choice, [event.text], event.tokens, list(event.logprobs))

    def add(self, event: Text) -> None:
        self.texts.append(event.text)
        self.tokens += event.tokens
        self.logprobs.extend(event.logprobs)

    def merged(self) -> Text:
        return Text(self.choice, "".join(self.texts), self.tokens, tuple(self.logprobs))


class LoopWaker:
    """Wakes the event loop once for any number of mailboxes that got something since it last looked.

    The engine thread writes to several mailboxes a round; a wake-up of the loop costs far more than an append, so
    `call_soon_threadsafe` runs only where none is on its way yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = Lock()
        self._ready: list[EventQueue] = []
        self.wakeups = 0

    def ring(self, queue: EventQueue) -> None:
        """Called from the engine thread, at most once between two takes of a queue."""
        with self._lock:
            first = not self._ready
            self._ready.append(queue)
        if first:
            self.wakeups += 1
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop is closed: the service ended, and nobody is left to hear.
                return

    def _deliver(self) -> None:
        with self._lock:
            ready, self._ready = self._ready, []
        for queue in ready:
            queue.wake()


class EventQueue:
    """The events of one request (an EventSink). `put` may come from any thread; the rest belongs to the event loop.

    At most `MERGE_ABOVE` events lie apart: beyond that, text joins the choice's last piece, and of `Waiting` and
    `Reading` only the newest is kept, so what lies here never exceeds the answer itself.
    """

    def __init__(self, waker: LoopWaker) -> None:
        self._waker = waker
        self._lock = Lock()
        self._events: deque[Event | _Pieces] = deque()
        self._last_piece: dict[int, _Pieces] = {}
        self._rung = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._interrupted = False

    def put(self, event: Event) -> None:
        with self._lock:
            if self._closed:
                return
            self._append(event)
            ring, self._rung = not self._rung, True
        if ring:
            self._waker.ring(self)

    def _append(self, event: Event) -> None:
        events = self._events
        if isinstance(event, Text):
            if len(events) < MERGE_ABOVE:
                events.append(event)
            elif (piece := self._last_piece.get(event.choice)) is not None:
                piece.add(event)
            else:
                piece = self._last_piece[event.choice] = _Pieces.of(event)
                events.append(piece)
            return
        if events and isinstance(event, Waiting | PrefillProgress) and type(events[-1]) is type(event):
            events.pop()
        events.append(event)

    def take(self) -> list[Event]:
        """Everything that came since the last take, in order; the order between choices may differ after a merge."""
        with self._lock:
            self._rung = False
            if not self._events:
                return []
            taken = [event.merged() if isinstance(event, _Pieces) else event for event in self._events]
            self._events.clear()
            self._last_piece.clear()
            return taken

    async def wait(self) -> None:
        """Return when something may have come, or after `interrupt`."""
        if self._events or self._interrupted:
            self._interrupted = False
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._interrupted = False

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def interrupt(self) -> None:
        """Make the waiting side look up although nothing came (a heartbeat is due, the client left)."""
        self._interrupted = True
        self.wake()

    def close(self) -> None:
        """Drop what lies here and whatever still comes."""
        with self._lock:
            self._closed = True
            self._events.clear()
            self._last_piece.clear()
