"""The door between any thread and the engine thread: submissions, cancels, and the bound of the queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.scheduling import reasons
from engine.request import Ending, EventSink, Request, RequestError

QUEUE_FULL_RETRY_S = 5
NOT_SERVING_RETRY_S = 5


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    request: Request
    sink: EventSink


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class End:
    """A request must end although its client is there."""

    request_id: str
    error: RequestError
    ending: Ending


class Inbox:
    """What other threads left for the engine thread, and how many requests are inside.

    At most `queue_limit` requests wait beyond those that free slots can take. The counts are kept under one lock, so
    that requests that arrive together cannot all take the last place. Whoever leaves gives its place back at once, even
    where the engine hears of it only after a round.
    """

    def __init__(self, queue_limit: int) -> None:
        self._queue_limit = queue_limit
        self._lock = threading.Lock()
        self._items: deque[Submission | Cancel | End] = deque()
        self._wake = threading.Event()
        self._closed: Callable[[], RequestError] | None = loading
        self._opened = False
        self._live: set[str] = set()
        self._waiting: set[str] = set()
        self._free_slots = 0
        self.refused = 0

    def open(self, slots: int) -> None:
        """The model is loaded: accept requests for `slots` slots, unless the door was shut meanwhile."""
        with self._lock:
            self._free_slots, self._opened = slots, True
            if self._closed is loading:
                self._closed = None

    def shut(self, error: Callable[[], RequestError]) -> None:
        """Accept nothing more; whoever comes gets an `error` of their own."""
        with self._lock:
            self._closed = error
        self._wake.set()

    def unshut(self) -> None:
        """Accept again after `shut`, or once the model is loaded."""
        with self._lock:
            self._closed = None if self._opened else loading

    def submit(self, request: Request, sink: EventSink) -> None:
        """Raises RequestError where nothing is accepted, the queue is full, or the id is in use."""
        with self._lock:
            error = self._refusal(request)
            if error is not None:
                raise error
            self._live.add(request.id)
            self._waiting.add(request.id)
            self._items.append(Submission(request, sink))
        self._wake.set()

    def count_refusal(self) -> None:
        """A request was refused that never got in here."""
        with self._lock:
            self.refused += 1

    def cancel(self, request_id: str) -> None:
        self._leave(Cancel(request_id))

    def end(self, request_id: str, error: RequestError, ending: Ending) -> None:
        self._leave(End(request_id, error, ending))

    def wake(self) -> None:
        self._wake.set()

    def take(self) -> list[Submission | Cancel | End]:
        """Everything left since the last call, in order. Engine thread only."""
        items: list[Submission | Cancel | End] = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def sleep(self, timeout_s: float) -> None:
        """Sleep until something is left here, at most `timeout_s`. Engine thread only."""
        self._wake.wait(timeout_s)
        self._wake.clear()

    def slot_taken(self) -> None:
        with self._lock:
            self._free_slots -= 1

    def slot_freed(self) -> None:
        with self._lock:
            self._free_slots += 1

    def request_runs(self, request_id: str) -> None:
        """A request left the queue: its first choice has a slot."""
        with self._lock:
            self._waiting.discard(request_id)

    def request_ended(self, request_id: str) -> None:
        with self._lock:
            self._live.discard(request_id)
            self._waiting.discard(request_id)

    def _leave(self, item: Cancel | End) -> None:
        with self._lock:
            self._waiting.discard(item.request_id)
            self._items.append(item)
        self._wake.set()

    def _refusal(self, request: Request) -> RequestError | None:
        if self._closed is not None:
            return self._closed()
        if request.id in self._live:
            return RequestError(
                f"a request with the id {request.id!r} is running", status=400, code="duplicate_request_id", param="id"
            )
        waiting = len(self._waiting)
        if waiting >= self._queue_limit + self._free_slots:
            message = reasons.queue_full(self._queue_limit, waiting)
            return RequestError(message, status=503, code="queue_full", retry_after=QUEUE_FULL_RETRY_S)
        return None


def loading() -> RequestError:
    return RequestError("the model is still loading", status=503, code="loading", retry_after=NOT_SERVING_RETRY_S)


def cancelled() -> RequestError:
    """For a request that the operator ended. A 410, because clients retry what looks like a fault of the server."""
    return RequestError("cancelled by the operator", status=410, code="cancelled")


def draining() -> RequestError:
    return RequestError(
        "the server drains and accepts no new requests",
        status=503,
        code="draining",
        retry_after=NOT_SERVING_RETRY_S,
    )
