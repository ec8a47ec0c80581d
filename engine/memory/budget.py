"""The memory budget: the floors, how many slots the box holds, and the split of memory that `/health` shows.

    floors = default_floors(total)                          # what admission and commits keep free
    fit = fit_slots(requested, windows, cost, available=..., floor=floors.floor, kv=KvBacking.POOLED)
    meter = SplitMeter(probe.read())                        # before anything is loaded
    split = meter.split(probe.read(), Named(weights=..., kv_committed=...))

The split adds up to `total - available` because each part is counted, not because the rest is booked somewhere:
`outside` is the use before the engine loaded, plus what other processes gained since (the kernel's own count of pages
in use, less this process's), plus this process's memory that no entry names. Where the named entries claim more than
the process holds, the sum is too large and shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from engine.memory.probe import MemoryReading
from engine.memory.sizes import GIB, size
from engine.protocol import MemorySplit

SPLIT_TOLERANCE = 128 << 20
"""Bytes by which a quiet box's split may miss `total - available`, or 2 % of total, whichever is more."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Bytes kept available: `floor` by admission while requests run together, `hard_floor` by every commit."""

    floor: int
    hard_floor: int


def default_floors(total: int, floor: int | None = None, hard_floor: int | None = None) -> Floors:
    """The floors of a box with `total` bytes: min(15 GiB, 10 % of total), and two thirds of it, where not set.

    Raises ValueError where a floor is negative, the hard floor lies above the floor, or the floor leaves nothing.
    """
    if floor is None:
        floor = min(15 * GIB, total // 10)
    if hard_floor is None:
        hard_floor = floor * 2 // 3
    if floor < 0:
        raise ValueError(f"TANDEM_PARALLEL_FLOOR_GB must be 0 or more, got {size(floor)}")
    if floor >= total:
        raise ValueError(f"TANDEM_PARALLEL_FLOOR_GB must be below the {size(total)} of memory, got {size(floor)}")
    if not 0 <= hard_floor <= floor:
        raise ValueError(
            f"TANDEM_KV_HARD_FLOOR_GB must lie between 0 and the floor (TANDEM_PARALLEL_FLOOR_GB, {size(floor)}), "
            f"got {size(hard_floor)}"
        )
    return Floors(floor=floor, hard_floor=hard_floor)


class KvBacking(Enum):
    """When a slot's KV takes memory: page by page as rows are written, or its whole window at start."""

    POOLED = auto()
    WHOLE_WINDOW = auto()


@dataclass(frozen=True, slots=True)
class SlotCost:
    """What slots take at start, in bytes: `engine_bytes` once (weights still to load, shared workspace),
    `state_bytes` a slot, `row_bytes` a token of window where the KV is backed as a whole."""

    engine_bytes: int
    state_bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class SlotFit:
    """How many slots start; `reason` is a sentence where that is fewer than asked for, else None."""

    slots: int
    reason: str | None


def fit_slots(
    requested: int, windows: Sequence[int], cost: SlotCost, *, available: int, floor: int, kv: KvBacking
) -> SlotFit:
    """How many of `requested` slots (their `windows` in tokens, slot 0 first) the box holds above `floor`.

    At least one: whether that one can be backed is for its commit to say. Pooled KV counts nothing here, since
    admission and the commits keep it above the floors; whole windows count in full. Raises ValueError where
    `requested` is below 1 or does not match `windows`.
    """
    if requested < 1:
        raise ValueError(f"TANDEM_PARALLEL must be at least 1, got {requested}")
    if len(windows) != requested:
        raise ValueError(f"{requested} slots were asked for, but {len(windows)} windows given")
    each = [cost.state_bytes + (0 if kv is KvBacking.POOLED else window * cost.row_bytes) for window in windows]
    room = available - floor - cost.engine_bytes
    slots, taken = 0, 0
    while slots < requested and taken + each[slots] <= room:
        taken += each[slots]
        slots += 1
    if slots == requested:
        return SlotFit(requested, None)
    kept = max(1, slots)
    blocked = min(kept, requested - 1)
    what = "" if kv is KvBacking.POOLED else ", its whole window counted because the KV pool is off,"
    return SlotFit(
        kept,
        f"{kept} of {requested} slots: slot {blocked} takes {size(each[blocked])}{what} and "
        f"{size(max(0, room - sum(each[:blocked])))} is left above the {size(floor)} floor "
        f"({size(available)} available, {size(cost.engine_bytes)} for the engine itself, "
        f"{size(sum(each[:blocked]))} for the {'slot' if blocked == 1 else 'slots'} before it)",
    )


@dataclass(frozen=True, slots=True)
class Named:
    """Bytes that this process holds, by owner, as each owner counts them: memory that is backed and cannot be
    dropped (no mapped file, no reserved range), nothing counted twice."""

    weights: int = 0
    kv_committed: int = 0
    caches: int = 0
    state: int = 0
    graphs: int = 0
    workspace: int = 0
    allocator_free: int = 0
    roles: int = 0

    @property
    def total(self) -> int:
        return (
            self.weights
            + self.kv_committed
            + self.caches
            + self.state
            + self.graphs
            + self.workspace
            + self.allocator_free
            + self.roles
        )


class SplitMeter:
    """Measures the split against a baseline: a reading taken before the engine loads anything."""

    def __init__(self, baseline: MemoryReading) -> None:
        self._baseline = baseline

    def split(self, reading: MemoryReading, named: Named) -> MemorySplit:
        """The split at `reading`, with `named` as the owners count now."""
        before = self._baseline
        others = (reading.occupied - reading.own) - (before.occupied - before.own)
        unnamed = max(0, reading.own - before.own - named.total)
        return MemorySplit(
            weights=named.weights,
            kv_committed=named.kv_committed,
            caches=named.caches,
            state=named.state,
            graphs=named.graphs,
            workspace=named.workspace,
            allocator_free=named.allocator_free,
            roles=named.roles,
            outside=max(0, before.used + others + unnamed),
        )


def split_total(split: MemorySplit) -> int:
    """The sum of the parts, to hold against `total - available`."""
    return (
        split.weights
        + split.kv_committed
        + split.caches
        + split.state
        + split.graphs
        + split.workspace
        + split.allocator_free
        + split.roles
        + split.outside
    )
