"""What the ledger keeps of one request: its row, made when it has ended."""

from __future__ import annotations

from engine.protocol import Finish, LedgerRow
from engine.request import Request
from engine.sequence.request_state import RequestState

SHOWN = 128
"""Characters kept of a name that a client chose."""

UNREAD_MODEL = "unknown"
"""The model of a request that was refused before its body was understood."""

LARGEST = (1 << 63) - 1
"""The largest number that the file holds: a refused request may have asked for more."""


def ended_row(req: RequestState, finish: Finish, reason: str | None, *, now: float, wall: float) -> LedgerRow:
    """The row of a request that the engine had: `now` is the engine's clock at its end, `wall` the Unix time then."""
    request = req.request
    first, last = req.first_token, req.last_token
    writing_s = _between(first, last)
    # Each sequence's first token comes out of its prompt's last row, before there is a pace to speak of.
    paced = req.completion_tokens - request.n
    return LedgerRow(
        id=request.id,
        client=request.client[:SHOWN],
        model=request.model[:SHOWN],
        slot=req.slot,
        arrived_at=_told(wall - (now - req.arrived)),
        finished_at=_told(wall),
        prompt_tokens=req.prompt_len,
        cached_tokens=req.cached_tokens,
        cache_source="resident" if req.cached_tokens else "none",
        completion_tokens=req.completion_tokens,
        max_tokens=req.max_tokens if req.admitted else _kept(request.max_tokens),
        finish=finish,
        reason=reason,
        queue_s=_between(req.arrived, req.admitted_at),
        ttft_s=_between(req.arrived, first),
        prefill_s=_between(req.admitted_at, first),
        decode_s=writing_s,
        total_s=_told(now - req.arrived),
        tok_s=round(paced / writing_s, 3) if writing_s and paced > 0 else None,
        worst_gap_s=_between(0.0, req.worst_gap_s),
        route=req.route,
    )


def refused_row(request: Request, reason: str, *, wall: float) -> LedgerRow:
    """The row of a request that was not let in."""
    return _refused(
        request.id,
        request.client,
        request.model,
        reason,
        prompt_tokens=len(request.prompt),
        max_tokens=_kept(request.max_tokens),
        wall=wall,
    )


def unread_row(request_id: str, client: str, reason: str, *, wall: float) -> LedgerRow:
    """The row of a request whose body was not taken, or not understood."""
    return _refused(request_id, client, UNREAD_MODEL, reason, prompt_tokens=0, max_tokens=None, wall=wall)


def _refused(
    request_id: str, client: str, model: str, reason: str, *, prompt_tokens: int, max_tokens: int | None, wall: float
) -> LedgerRow:
    return LedgerRow(
        id=request_id,
        client=client[:SHOWN],
        model=model[:SHOWN],
        slot=None,
        arrived_at=wall,
        finished_at=wall,
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        cache_source="none",
        completion_tokens=0,
        max_tokens=max_tokens,
        finish=Finish.REFUSED,
        reason=reason,
        queue_s=None,
        ttft_s=None,
        prefill_s=None,
        decode_s=None,
        total_s=0.0,
        tok_s=None,
        worst_gap_s=None,
        route=None,
    )


def _kept(count: int | None) -> int | None:
    return None if count is None else min(count, LARGEST)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else _told(end - start)


def _told(seconds: float) -> float:
    """To the microsecond, which is more than any of this is measured to."""
    return round(seconds, 6)
