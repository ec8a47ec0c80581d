"""The pressure ladder: who gives memory back when it is short, in a fixed order, and the floor that asks for it.

`Reclaimable` is anything that can give memory back: a cache level, the allocator's free blocks, a small model, an
idle conversation. `PressureLadder` asks them in order until enough is free. `HardFloor` is the pool's guard: before
pages are mapped it keeps `available` above the hard floor, through the ladder where that is needed.

    ladder = PressureLadder([resident_cache, side_conversations, main_conversation], clock=monotonic)
    freed = ladder.relieve(need_bytes, "req-1 needed 20 MiB more to be admitted", levels=ADMISSION_LEVELS)
    pool.guard = HardFloor(probe, floor=hard_floor_bytes, ladder=ladder)

The order is data (the sequence given, which must follow `Level`), the mechanism is one loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from time import monotonic
from typing import Protocol

from engine.memory.probe import MemoryProbe
from engine.memory.sizes import size
from engine.protocol import LadderLevel


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


@dataclass(slots=True)
class _Given:
    """What one rung gave since start: how often it was asked, the bytes in all, and when and why it was last asked."""

    reclaims: int = 0
    freed: int = 0
    last_at: float | None = None
    last_reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Rung:
    what: Reclaimable
    given: _Given = field(default_factory=_Given)


class PressureLadder:
    """Rungs in the order of `Level`; within a level, in the order given. `clock` dates what they give.

    Raises ValueError where the order given breaks that of `Level`.
    """

    def __init__(
        self, rungs: Sequence[Reclaimable] = (), *, clock: Callable[[], float] = monotonic, history: int = 256
    ) -> None:
        for above, below in pairwise(rungs):
            if below.level < above.level:
                raise ValueError(
                    f"pressure ladder: {below.name} ({below.level.name}) stands after {above.name} "
                    f"({above.level.name}), but gives back before it"
                )
        self._rungs = tuple(_Rung(rung) for rung in rungs)
        self._clock = clock
        self.history: deque[Reclaimed] = deque(maxlen=history)

    def held_bytes(self, levels: Iterable[Level] = ALL_LEVELS) -> int:
        """Bytes that the rungs of `levels` could give back now."""
        wanted = frozenset(levels)
        return sum(rung.what.held_bytes() for rung in self._rungs if rung.what.level in wanted)

    def levels(self, now: float) -> list[LadderLevel]:
        """Every rung in order, as `/health` shows it."""
        return [
            LadderLevel(
                level=rung.what.name,
                held_bytes=rung.what.held_bytes(),
                reclaims=rung.given.reclaims,
                freed_bytes=rung.given.freed,
                last_age_s=None if rung.given.last_at is None else now - rung.given.last_at,
                last_reason=rung.given.last_reason,
            )
            for rung in self._rungs
        ]

    def relieve(self, need: int, reason: str, *, levels: Iterable[Level] = ALL_LEVELS) -> int:
        """Ask the rungs of `levels` in order until `need` bytes came back; return the bytes freed. `reason` says what
        for, in a sentence.

        A rung that holds nothing is passed over. Nothing is asked of a rung once enough came back.
        """
        wanted = frozenset(levels)
        freed = 0
        for entry in self._rungs:
            rung, given = entry.what, entry.given
            short = need - freed
            if short <= 0:
                break
            if rung.level not in wanted or rung.held_bytes() <= 0:
                continue
            got = rung.reclaim(short)
            if got < 0:
                raise ValueError(f"pressure ladder: {rung.name} reports {got} bytes freed")
            self.history.append(Reclaimed(rung.name, rung.level, short, got))
            given.reclaims += 1
            given.freed += got
            given.last_at = self._clock()
            given.last_reason = reason
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
            reason = f"pages of {size(need)} would have left less than the {size(self._floor)} hard floor"
            got = self._ladder.relieve(self._floor + need - available, reason)
            if got == 0:
                return Shortfall(need=need, available=available, floor=self._floor, freed=freed)
            freed += got
            reading = self._probe.read()
            # An old reading does not show what came back: asking on for it would empty every rung.
            available = reading.available if reading.age_s == 0 else available + got
        return None
