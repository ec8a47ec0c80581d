"""A GPU's memory: its probe, and what torch's allocator keeps there and can give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.execution.cuda.page_stock import PageStock
from engine.memory.kv.ranges import RangeBacking
from engine.memory.pressure import Level
from engine.memory.probe import GPU, MemoryProbe, MemoryReading


class Allocator(Protocol):
    """The allocator of one GPU. All figures in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """What the driver has free, and what the GPU has."""
        ...

    def reserved(self) -> int:
        """Held from the driver."""
        ...

    def allocated(self) -> int:
        """Held from the driver and in use."""
        ...

    def empty(self) -> None:
        """Return to the driver what is held and not in use."""
        ...


class GpuProbe:
    """Reads a GPU (implements `engine.memory.probe.MemoryProbe`). `stock` has the KV pool's pages, where it has any.

    Spare pages, and those on their way out, are available: the pool takes the former before it asks the driver, and
    waits for the latter where the driver has none. Blocks that the allocator keeps free are
    not, until it gives them back (`AllocatorBlocks`), since the pool cannot take those. What no book of this
    process names (its context, its kernels) counts with what others hold.
    """

    def __init__(self, allocator: Allocator, stock: PageStock | None = None) -> None:
        self._allocator = allocator
        self._stock = stock

    def read(self) -> MemoryReading:
        free, total = self._allocator.free_and_total()
        own = self._allocator.reserved()
        if self._stock is not None:
            idle = self._stock.idle
            free += idle * self._stock.page_bytes
            own += (self._stock.live - idle) * self._stock.page_bytes
        return MemoryReading(source=GPU, total=total, available=min(total, free), occupied=total - free, own=own)


class AllocatorBlocks:
    """Blocks that the allocator keeps free (implements `engine.memory.pressure.Reclaimable`)."""

    name = "the allocator's free blocks"
    level = Level.ALLOCATOR

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._stuck = 0

    def held_bytes(self) -> int:
        """What is held and unused, without what the last reclaim could not return: parts of blocks in use."""
        return max(0, self.free() - self._stuck)

    def free(self) -> int:
        """Everything that is held and unused."""
        return max(0, self._allocator.reserved() - self._allocator.allocated())

    def reclaim(self, need: int) -> int:
        before = self._allocator.reserved()
        self._allocator.empty()
        self._stuck = self.free()
        return before - self._allocator.reserved()


@dataclass(frozen=True, slots=True)
class KvMemory:
    """A GPU's memory, where the KV lies there: its name ("cuda:0"), who measures it, what it had before anything was
    loaded, what its ranges are made of, and what its allocator can give back. `whole_windows` is why windows are backed
    as a whole, None where they come page by page."""

    name: str
    probe: MemoryProbe
    baseline: MemoryReading
    ranges: RangeBacking
    blocks: AllocatorBlocks
    whole_windows: str | None = None
