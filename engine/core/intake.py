"""What a turn begins with: new requests, clients that left, requests that waited or ran too long."""

from __future__ import annotations

from engine.core.lifecycle import Lifecycle
from engine.core.scheduling.deadlines import overdue
from engine.core.scheduling.inbox import Cancel, End, Submission, draining
from engine.core.state import EngineState
from engine.request import Ending, RequestError
from engine.sequence.request_state import new_request_state

EXPIRE_EVERY_S = 0.1


class Intake:
    """Brings requests into the engine, and ends those that must not go on."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._arrivals = 0
        self._expire_at = 0.0

    def take(self) -> None:
        """Take what other threads left in the inbox, in order."""
        state = self._state
        for item in state.inbox.take():
            match item:
                case Submission(request, sink):
                    self._arrivals += 1
                    req = new_request_state(request, sink, self._arrivals, state.clock())
                    state.requests[request.id] = req
                    state.queue.append(req)
                    state.queue_unchanged = False
                case Cancel(request_id):
                    if (gone := state.requests.get(request_id)) is not None:
                        self._lifecycle.abandon(gone)
                case End(request_id, error, ending):
                    if (ended := state.requests.get(request_id)) is not None:
                        self._lifecycle.fail(ended, error, ending)

    def refuse_waiting(self) -> None:
        """The engine drains: who has no slot yet is better off elsewhere."""
        for req in [req for req in self._state.queue if not req.admitted]:
            self._lifecycle.fail(req, draining(), Ending.REFUSED)

    def expire(self) -> None:
        """End the requests whose time is over."""
        state = self._state
        now = state.clock()
        if now < self._expire_at:
            return
        self._expire_at = now + EXPIRE_EVERY_S
        for req in tuple(state.requests.values()):
            error = overdue(req, state.config, now)
            if error is not None:
                self._lifecycle.fail(req, error, Ending.TIMEOUT)

    def end_all(self, error: RequestError, cause: BaseException | None) -> None:
        """End every request with `error`, after a defect or at the very end."""
        for req in tuple(self._state.requests.values()):
            self._lifecycle.fail(req, error, Ending.ERROR, cause)
