"""The pressure ladder: who gives memory back when it is short, in a fixed order, and the floor that asks for it.

`Reclaimable` is anything that can give memory back: a cache level, the allocator's free blocks, a small model, an
idle conversation. `PressureLadder` asks them in order until enough is free. `HardFloor` is the pool's guard: before
pages are mapped it keeps `available` above the hard floor, through the ladder where that is needed.

    ladder = PressureLadder([resident_cache, side_conversations, main_conversation])
    freed = ladder.relieve(need_bytes, levels=ADMISSION_LEVELS)
    pool.guard = HardFloor(probe, floor=hard_floor_bytes, ladder=ladder)

The order is data (the sequence given, which must follow `Level`), the mechanism is one loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Protocol

from engine.memory.probe import MemoryProbe


class Level(IntEnum):
    """What is given back, in the order in which it is asked."""

    CACHE = 0
    ALLOCATOR = 1
    ROLE = 2
    SIDE_CONVERSATION = 3
    MAIN_CONVERSATION = 4


ALL_LEVELS = frozenset(Level)
"""What a commit may ask for before it is refused."""

ADMISSION_LEVELS = frozenset({Level.ALLOCATOR, Level.ROLE, Level.SIDE_CONVERSATION, Level.MAIN_CONVERSATION})
"""What an admission may ask for before a request waits: everything but the caches, which would only be refilled."""


class Reclaimable(Protocol):
    """Something that holds memory and can give it back. Only the engine thread calls it."""

    @property
    def name(self) -> str: ...

    @property
    def level(self) -> Level: ...

    def held_bytes(self) -> int:
        """Bytes that could be given back now; 0 while what it holds is in use."""
        ...

    def reclaim(self, need: int) -> int:
        """Give back at least `need` bytes where that many are held, in this rung's own order; return the bytes freed
        (more than asked where the pieces are larger, fewer where no more is held)."""
        ...


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """One rung's answer: `asked` bytes were wanted of it, `freed` came back."""

    name: str
    level: Level
    asked: int
    freed: int


class PressureLadder:
    """Rungs in the order of `Level`; within a level, in the order given.

    Raises ValueError where the order given breaks that of `Level`.
    """

    def __init__(self, rungs: Sequence[Reclaimable] = (), *, history: int = 256) -> None:
        for above, below in pairwise(rungs):
            if below.level < above.level:
                raise ValueError(
                    f"pressure ladder: {below.name} ({below.level.name}) stands after {above.name} "
                    f"({above.level.name}), but gives back before it"
                )
        self._rungs = tuple(rungs)
        self.history: deque[Reclaimed] = deque(maxlen=history)

    def held_bytes(self, levels: Iterable[Level] = ALL_LEVELS) -> int:
        """Bytes that the rungs of `levels` could give back now."""
        wanted = frozenset(levels)
        return sum(rung.held_bytes() for rung in self._rungs if rung.level in wanted)

    def relieve(self, need: int, *, levels: Iterable[Level] = ALL_LEVELS) -> int:
        """Ask the rungs of `levels` in order until `need` bytes came back; return the bytes freed.

        A rung that holds nothing is passed over. Nothing is asked of a rung once enough came back.
        """
        wanted = frozenset(levels)
        freed = 0
        for rung in self._rungs:
            short = need - freed
            if short <= 0:
                break
            if rung.level not in wanted or rung.held_bytes() <= 0:
                continue
            got = rung.reclaim(short)
            if got < 0:
                raise ValueError(f"pressure ladder: {rung.name} reports {got} bytes freed")
            self.history.append(Reclaimed(rung.name, rung.level, short, got))
            freed += got
        return freed


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why memory could not be found: after `freed` bytes were given back, `available` still cannot lose `need` bytes
    and stay at or above `floor`."""

    need: int
    available: int
    floor: int
    freed: int


class Guard(Protocol):
    """Asked before pages are mapped."""

    def make_room(self, need: int) -> Shortfall | None:
        """None when `need` more bytes may be taken now, else why not."""
        ...


class HardFloor:
    """Keeps the available memory at or above `floor` (bytes) while pages are mapped, through `ladder`."""

    def __init__(self, probe: MemoryProbe, floor: int, ladder: PressureLadder) -> None:
        self._probe = probe
        self._floor = floor
        self._ladder = ladder

    def make_room(self, need: int) -> Shortfall | None:
        available = self._probe.read().available
        freed = 0
        while available - need < self._floor:
            # What a rung frees may not show in full (a shared page, another process): read again, and go on while
            # the ladder gives anything.
            got = self._ladder.relieve(self._floor + need - available)
            if got == 0:
                return Shortfall(need=need, available=available, floor=self._floor, freed=freed)
            freed += got
            available = self._probe.read().available
        return None
