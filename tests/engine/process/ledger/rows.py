"""Ledger rows for tests: whole ones, of which a test names what it is about."""

from __future__ import annotations

from msgspec.structs import replace

from engine.protocol import Finish, LedgerRow

ROW = LedgerRow(
    id="req-1",
    client="curl",
    model="m",
    slot=1,
    arrived_at=1_000_000.0,
    finished_at=1_000_003.0,
    prompt_tokens=10,
    cached_tokens=4,
    cache_source="resident",
    completion_tokens=20,
    max_tokens=64,
    finish=Finish.STOP,
    reason=None,
    queue_s=0.5,
    ttft_s=1.0,
    prefill_s=0.5,
    decode_s=2.0,
    total_s=3.0,
    tok_s=9.5,
    worst_gap_s=0.25,
    route="empty",
)


def row(number: int, **fields: object) -> LedgerRow:
    """Request `number`, which ended that many seconds after the first."""
    return replace(ROW, **{"id": f"req-{number}", "finished_at": 1_000_000.0 + number, **fields})
