"""When a request has waited or run too long, and what its client hears then."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.core.scheduling import reasons
from engine.protocol import WaitState
from engine.request import RequestError
from engine.sequence.request_state import RequestState

SLOT_RETRY_S = 10
MEMORY_RETRY_S = 10


def overdue(req: RequestState, config: EngineConfig, now: float) -> RequestError | None:
    """The error that ends `req` now, or None while it may go on.

    Waiting for a slot ends after the queue timeout; so does waiting for memory, where the client gets no stream. A
    streamed request waits for memory, and any request runs, up to the request timeout.
    """
    age = now - req.arrived
    waiting = req.waiting
    if not req.admitted and waiting is not None:
        if waiting.state is WaitState.MEMORY:
            limit = config.request_timeout_s if req.request.stream else config.queue_timeout_s
            if age > limit:
                message = reasons.memory_timeout(limit, waiting.reason)
                return RequestError(message, status=503, code="memory_wait_timeout", retry_after=MEMORY_RETRY_S)
        elif age > config.queue_timeout_s:
            message = reasons.slot_timeout(config.queue_timeout_s, waiting.reason)
            return RequestError(message, status=429, code="queue_timeout", retry_after=SLOT_RETRY_S)
    if age > config.request_timeout_s:
        written = req.completion_tokens + sum(c.generated for c in req.running)
        message = reasons.request_timeout(config.request_timeout_s, written)
        return RequestError(message, status=504, code="request_timeout")
    return None
