"""Admission: may this request start now, beside what runs, or why not. Pure decisions, and the reservations behind
them.

A request reserves what it may still take: the KV pages that its prompt and `max_tokens` may commit on its slot beyond
those the slot holds. The reservation is credited as the pages are committed, so at any time

    free to promise = available - sum of uncredited reservations - floor

- Beside others: admitted where the need fits in that. Else idle conversations and roles are given back (caches are
  left out), and only then it waits, with the numbers.
- Alone: never waits. It runs where it fits above the hard floor (a commit may take the caches back too), else it is
  refused with the figures (400 `too_large`).
- Beside others, but too large even for the box to itself: refused at once.

    view = AdmissionView(need=need, available=probe.read().available, outstanding=reservations.outstanding(), ...)
    match admit_with_reclaim(view, ladder, lambda: probe.read().available):
        case Admit(need): reservations.reserve(slot, need)
        case WaitForMemory(reason): ...          # ask again when something ended
        case Refuse(reason, figures): raise too_large(reason)
    ...
    reservations.credit(slot, pool.commit(slot, rows)) # every time pages are committed for the slot
    reservations.release(slot)                         # the request ended, however it ended
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.memory.pressure import ADMISSION_LEVELS, PressureLadder
from engine.memory.sizes import size


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What an admission is decided on, all in bytes.

    `need` is what the request may still take: the KV pages that its prompt and max_tokens may commit on its slot.
    `running` other requests run now. `outstanding` is what they may still take (their uncredited reservations),
    `held_by_running` what they hold and give back when they end. `idle` is what roles and idle conversations could
    give back, `caches` what the caches could.
    """

    need: int
    available: int
    floor: int
    hard_floor: int
    running: int
    outstanding: int
    held_by_running: int
    idle: int
    caches: int


@dataclass(frozen=True, slots=True)
class Admit:
    """It fits: reserve `need`."""

    need: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """It would fit after roles and idle conversations give back `need` bytes: ask the ladder, then decide again."""

    need: int


@dataclass(frozen=True, slots=True)
class WaitForMemory:
    """It fits later: `reason` is one sentence with the numbers."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusedFigures:
    """Why a request can never run: even with all else given back, `available` cannot lose `need` bytes above
    `hard_floor`."""

    need: int
    available: int
    hard_floor: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """It does not fit even alone."""

    reason: str
    figures: RefusedFigures


def admit(view: AdmissionView) -> Admit | Reclaim | WaitForMemory | Refuse:
    """Decide on one request. Same view, same decision."""
    need = view.need
    alone = view.available + view.held_by_running + view.idle + view.caches
    if alone - need < view.hard_floor:
        figures = RefusedFigures(need=need, available=alone, hard_floor=view.hard_floor)
        return Refuse(_too_large(figures), figures)
    if view.running == 0:
        return Admit(view.need)
    short = view.floor + view.outstanding + need - view.available
    if short <= 0:
        return Admit(view.need)
    if view.idle > 0:
        return Reclaim(min(short, view.idle))
    return WaitForMemory(_almost_full(view))


def admit_with_reclaim(
    view: AdmissionView, ladder: PressureLadder, available: Callable[[], int], *, who: str = "a request"
) -> Admit | WaitForMemory | Refuse:
    """Decide, giving back roles and idle conversations through `ladder` where that lets the request in, which `who`
    names.

    `available` reads the memory anew after each step. Each step frees something or is the last, so this ends.
    """
    decision = admit(view)
    while isinstance(decision, Reclaim):
        reason = f"{who} needed {size(decision.need)} more to be admitted"
        freed = ladder.relieve(decision.need, reason, levels=ADMISSION_LEVELS)
        idle = ladder.held_bytes(ADMISSION_LEVELS) if freed else 0
        view = replace(view, available=available(), idle=idle)
        decision = admit(view)
    return decision


def _almost_full(view: AdmissionView) -> str:
    free = max(0, view.available - view.outstanding - view.floor)
    others = "1 running request" if view.running == 1 else f"{view.running} running requests"
    return (
        f"memory is almost full, this request may take {size(view.need)} and {size(free)} is free for it: "
        f"{size(view.available)} available, {size(view.outstanding)} promised to {others}, "
        f"{size(view.floor)} kept as the floor"
    )


def _too_large(figures: RefusedFigures) -> str:
    return (
        f"too large for this box even alone: prompt and max_tokens may take {size(figures.need)} "
        f"of KV, but of the {size(figures.available)} that can be made available, "
        f"{size(figures.hard_floor)} stays free as the hard floor; ask for fewer tokens, or lower "
        "TANDEM_KV_HARD_FLOOR_GB"
    )


class Reservations:
    """The uncredited reservations of the running slots, in bytes, one a slot. Owned by the engine thread."""

    def __init__(self) -> None:
        self._by_slot: dict[int, int] = {}

    def reserve(self, slot: int, need: int) -> None:
        """Reserve `need` for the request that starts on `slot`. Raises ValueError where the slot holds one already."""
        if slot in self._by_slot:
            raise ValueError(f"slot {slot} already has a reservation of {self._by_slot[slot]} bytes")
        self._by_slot[slot] = max(0, need)

    def credit(self, slot: int, committed: int) -> None:
        """`committed` bytes of KV pages were mapped for the slot: they are in `available` now, no longer a promise.
        A slot without a reservation is ignored."""
        if slot in self._by_slot:
            self._by_slot[slot] = max(0, self._by_slot[slot] - committed)

    def release(self, slot: int) -> None:
        """The slot's request ended. Unknown slots are ignored."""
        self._by_slot.pop(slot, None)

    def outstanding(self) -> int:
        """Bytes that the running slots may still take."""
        return sum(self._by_slot.values())

    def of(self, slot: int) -> int:
        """Bytes that the request on `slot` may still take; 0 where none is booked."""
        return self._by_slot.get(slot, 0)
