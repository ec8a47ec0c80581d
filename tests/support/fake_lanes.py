"""Lanes for scripted `/health` bodies: one that writes, one that reads, one that is idle."""

from __future__ import annotations

import math

from engine.protocol import Lane, LaneRequest, LaneState

PAGE = 65536
ROW_BYTES = 23040
WINDOW = 8192


def writing(slot: int, t: float, *, rate: float, client: str, start: float = 0.0, limit: int = 256) -> Lane:
    """A lane that writes at about `rate` tokens a second, its prompt two thirds cached."""
    age = max(0.0, t - start)
    done = min(limit - 1, int(age * rate) % limit)
    now = rate * (1 + 0.12 * math.sin(t * 0.9 + slot))
    rows = 301 + 90 * slot + done
    return lane(
        slot,
        LaneState.DECODING,
        f"Writing, {now:.1f} tok/s",
        rows=rows,
        request=LaneRequest(
            id=f"req-{0x7F3A + 37 * slot:04x}",
            client=client,
            prompt_tokens=301 + 90 * slot,
            cached_tokens=256 if slot != 1 else 0,
            completion_tokens=done,
            max_tokens=limit,
            ttft_s=0.21 + 0.1 * slot,
            tok_s=round(now, 1),
            prefill_done=301 + 90 * slot,
            prefill_total=301 + 90 * slot,
            accepted_per_round=1.0,
            age_s=age,
            queue_s=0.01 + 0.4 * slot,
            worst_gap_s=round(1.9 / rate, 3) if done > 1 else None,
        ),
    )


def reading(
    slot: int, t: float, *, total: int, rate: float, client: str, state: LaneState = LaneState.PREFILLING
) -> Lane:
    """A lane that reads a long prompt in chunks; a yielded one stands still and says why."""
    moving = state is LaneState.PREFILLING
    done = min(total, int(t * rate)) if moving else total // 3
    return lane(
        slot,
        state,
        f"Reading {done:,} of {total:,}, {rate:.0f} tok/s" if moving else f"Gave way at {done:,} of {total:,}",
        rows=done,
        reason=None if moving else "gives way to the shorter prompt in slot 3 (212 tokens to read)",
        request=LaneRequest(
            id=f"req-{0x81BC + slot:04x}",
            client=client,
            prompt_tokens=total,
            cached_tokens=512,
            completion_tokens=0,
            max_tokens=1024,
            ttft_s=None,
            tok_s=None,
            prefill_done=done,
            prefill_total=total,
            accepted_per_round=None,
            age_s=t,
            queue_s=0.02,
        ),
    )


def lane(
    slot: int,
    state: LaneState = LaneState.IDLE,
    text: str = "Idle",
    *,
    rows: int = 0,
    resident: int | None = None,
    reason: str | None = None,
    request: LaneRequest | None = None,
) -> Lane:
    """One slot; committed rows follow the rows held, in whole pages of 256-row margin."""
    held = max(rows, resident or 0)
    committed = min(WINDOW, (held // 256 + 2) * 256) if request else -(-held // 64) * 64
    return Lane(
        slot=slot,
        kind="main" if slot == 0 else "side",
        window=WINDOW,
        state=state,
        reason=reason,
        phase_text=text,
        rows=held,
        committed_rows=committed,
        resident_rows=held if resident is None else resident,
        committed_bytes=-(-committed * ROW_BYTES // PAGE) * PAGE,
        request=request,
    )
