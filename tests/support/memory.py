"""A scripted box: a probe whose available memory moves, and rungs that hold some of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.memory.pressure import Level
from engine.memory.probe import HOST, MemoryReading


@dataclass
class ScriptedProbe:
    """A box of `total` bytes of which `available` can be had; tests move `available`. `age_s`: of its readings."""

    available: int
    total: int = 1 << 40
    age_s: float = 0.0

    def read(self) -> MemoryReading:
        return MemoryReading(HOST, self.total, self.available, self.total - self.available, 0, self.age_s)


@dataclass
class ScriptedRung:
    """Holds pieces of the given sizes; gives back whole pieces, first to last, and hands the bytes to `probe`."""

    name: str
    level: Level
    pieces: list[int]
    probe: ScriptedProbe | None = None
    asked: list[int] = field(default_factory=list)

    def held_bytes(self) -> int:
        return sum(self.pieces)

    def reclaim(self, need: int) -> int:
        self.asked.append(need)
        freed = 0
        while self.pieces and freed < need:
            freed += self.pieces.pop(0)
        if self.probe is not None:
            self.probe.available += freed
        return freed
