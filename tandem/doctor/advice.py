"""How many slots a box should run, and what each number of them costs: memory by arithmetic, time as measured."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.memory.sizes import size
from engine.protocol import RoundStat

MOST_SLOTS = 8
"""Slot counts that are tested; more may work."""


class SlotCountCost(msgspec.Struct, frozen=True):
    """What a number of slots takes. `kv_bytes` is the KV with every window filled to its last row, `left_bytes` what
    then remains above the floor (below 0: it does not fit). `round_ms` is the measured time of a round that so many
    share and `round_ratio` that over a round of one; null where no running engine of this model has measured them."""

    slots: int
    kv_bytes: int
    left_bytes: int
    round_ms: float | None
    round_ratio: float | None


class SlotAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots this box should run, and what they cost in bytes.

    `row_bytes` is a token's KV, `main_bytes` and `side_bytes` a full window of slot 0 and of another slot; a slot takes
    them page by page as its conversation grows.
    """

    slots: int
    row_bytes: int
    main_window: int
    side_window: int
    main_bytes: int
    side_bytes: int
    weights_bytes: int
    reason: str
    costs: list[SlotCountCost]


def recommend(
    *,
    row_bytes: int,
    main_window: int,
    side_window: int,
    weights: int,
    room: int,
    cores: int,
    rounds: Mapping[int, RoundStat] | None = None,
) -> SlotAdvice:
    """The slot count whose windows, filled to the last row, fit in `room` bytes beside the weights.

    With more slots than twice the cores, a decode round takes longer with each of them, so they add little. `rounds`
    are the round times that an engine of this model has measured, by the slots that shared them.
    """
    main, side = main_window * row_bytes, side_window * row_bytes
    left = room - weights - main
    by_memory = 1 + max(0, left) // side
    by_cores = max(2, 2 * cores)
    slots = max(1, min(by_memory, by_cores, MOST_SLOTS))
    if slots == by_memory:
        reason = f"{size(max(0, left))} are left for side slots above the floor, a full one takes {size(side)}"
    elif slots == by_cores:
        reason = f"with {cores} cores more would add little; memory would hold {by_memory}"
    else:
        reason = f"more are untested; memory would hold {by_memory}"
    costs = [_cost(n, main, side, room - weights, rounds or {}) for n in range(1, max(slots, 4) + 1)]
    return SlotAdvice(
        slots=slots,
        row_bytes=row_bytes,
        main_window=main_window,
        side_window=side_window,
        main_bytes=main,
        side_bytes=side,
        weights_bytes=weights,
        reason=reason,
        costs=costs,
    )


def _cost(slots: int, main: int, side: int, room: int, rounds: Mapping[int, RoundStat]) -> SlotCountCost:
    kv = main + (slots - 1) * side
    shared, alone = rounds.get(slots), rounds.get(1)
    ratio = shared.mean_ms / alone.mean_ms if shared and alone and alone.mean_ms > 0 else None
    return SlotCountCost(slots, kv, room - kv, shared.mean_ms if shared else None, ratio)


def describe_advice(advice: SlotAdvice) -> str:
    """The advice and the table of costs, for a person."""
    lines = [
        f"Recommended: --parallel {advice.slots} ({advice.reason}).",
        f"Weights take {size(advice.weights_bytes)}, a token {size(advice.row_bytes)}: slot 0 up to "
        f"{size(advice.main_bytes)} ({advice.main_window} tokens), each other slot up to {size(advice.side_bytes)} "
        f"({advice.side_window} tokens), taken as conversations grow.",
        "",
        "slots   KV at full windows   left above the floor   a round",
    ]
    for cost in advice.costs:
        left = size(cost.left_bytes) if cost.left_bytes >= 0 else f"{size(-cost.left_bytes)} too little"
        lines.append(f"{cost.slots:>5}   {size(cost.kv_bytes):>18}   {left:>20}   {_round(cost)}")
    if all(cost.round_ms is None for cost in advice.costs):
        lines.append(
            "Round times are not measured: no engine with this model runs here and has served several at once."
        )
    return "\n".join(lines)


def _round(cost: SlotCountCost) -> str:
    if cost.round_ms is None:
        return "not measured"
    if cost.round_ratio is None:
        return f"{cost.round_ms:.1f} ms"
    return f"{cost.round_ms:.1f} ms, {cost.round_ratio:.2f} of a round of one, {cost.round_ratio / cost.slots:.2f} each"
