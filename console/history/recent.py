"""The last half hour in memory, bounded by age and bytes: the timeline of a live engine, for pause and scroll back."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from console.history.codec import BLOCK_SNAPSHOTS, Decoder, Encoder, pack, unpack
from console.history.rates import Track
from console.history.timeline import Moment, track_of
from engine.protocol import Health, decode_health

KEPT_S = 1800.0
KEPT_BYTES = 40 << 20
# How far before a moment of the past its rates reach. More would make each step back wait.
_TRACK_S = 600.0
_LEVEL = 1
# What Python objects take beside the bytes of a line.
_OVERHEAD = 60


@dataclass(eq=False)
class _Block:
    """Consecutive snapshots; `packed` once the block is full."""

    times: array[float] = field(default_factory=lambda: array("d"))
    lines: list[bytes] = field(default_factory=list)
    packed: bytes | None = None
    size: int = 0

    def decoder(self) -> Decoder:
        return Decoder(self.lines if self.packed is None else unpack(self.packed))

    def add(self, line: bytes, at: float) -> None:
        self.lines.append(line)
        self.times.append(at)
        self.size += len(line) + _OVERHEAD

    def close(self) -> None:
        self.packed = pack(self.lines, _LEVEL)
        self.lines = []
        self.size = len(self.packed) + _OVERHEAD + self.times.itemsize * len(self.times)


class RecentHistory:
    """A `Timeline` of the snapshots that arrived. Whole blocks are dropped, so up to half a minute more than `kept_s`
    may be held. Not thread-safe: its owner is the app's message handler."""

    def __init__(self, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_s = kept_s
        self._kept_bytes = kept_bytes
        self._blocks: deque[_Block] = deque()
        self._encoder = Encoder()
        self._latest: Moment | None = None
        self._read: tuple[_Block, Decoder] | None = None
        self._closed_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the snapshots take, their bookkeeping included."""
        return self._closed_bytes + (self._blocks[-1].size if self._blocks else 0)

    def add(self, health: Health, at: float) -> None:
        """Take in a snapshot received at `at`, not before the one that came last."""
        if not self._blocks or len(self._blocks[-1].times) >= BLOCK_SNAPSHOTS:
            self._begin_block()
        self._blocks[-1].add(self._encoder.line(msgspec.json.encode(health)), at)
        self._latest = Moment(health, at)
        while len(self._blocks) > 1 and self._is_over_limit(at):
            self._closed_bytes -= self._blocks.popleft().size

    def latest(self) -> Moment | None:
        return self._latest

    def at(self, when: float) -> Moment | None:
        if not self._blocks:
            return None
        starts = [block.times[0] for block in self._blocks]
        block = self._blocks[max(0, bisect_right(starts, when) - 1)]
        return self._moment(block, max(0, bisect_right(block.times, when) - 1))

    def span(self) -> tuple[float, float] | None:
        return (self._blocks[0].times[0], self._blocks[-1].times[-1]) if self._blocks else None

    def track(self, when: float) -> Track:
        return track_of(self._seconds(when - _TRACK_S, when))

    def _seconds(self, begin: float, end: float) -> Iterator[Moment]:
        """The first snapshot of each second from `begin` to `end`, and the last one of all."""
        second: int | None = None
        for block in list(self._blocks):
            first, after = bisect_left(block.times, begin), bisect_right(block.times, end)
            ends_here = after < len(block.times) or block is self._blocks[-1]
            for index in range(first, after):
                if int(block.times[index]) != second or (ends_here and index == after - 1):
                    second = int(block.times[index])
                    yield self._moment(block, index)

    def _moment(self, block: _Block, index: int) -> Moment:
        if self._read is None or self._read[0] is not block:
            self._read = (block, block.decoder())
        return Moment(decode_health(self._read[1].body(index)), block.times[index])

    def _begin_block(self) -> None:
        if self._blocks:
            self._blocks[-1].close()
            self._closed_bytes += self._blocks[-1].size
        self._blocks.append(_Block())
        self._encoder.begin_block()

    def _is_over_limit(self, now: float) -> bool:
        return now - self._blocks[0].times[-1] > self._kept_s or self.held_bytes > self._kept_bytes
