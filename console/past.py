"""The last half hour in memory: a timeline bounded by age and by bytes, for pause and scroll back."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from console.deltas import Key, delta, packed_bytes, patched, unpacked, unpacked_bytes
from console.history import Track
from console.timeline import Moment, track_of
from engine.protocol import Health, Queued, decode_health

KEPT_S = 1800.0
KEPT_BYTES = 40 << 20
# A key this old is followed by a new one: differences only grow.
_KEY_S = 60.0
# A request's arrival is a difference of two rounded figures: this close it is the same one.
_SAME_ARRIVAL_S = 0.02
# A frame of the past shows what led to it over this long; all of it would make each step back wait.
_REBUILT_S = 600.0
# What the lists and objects around one kept snapshot, and around one kept queue entry, take besides their bytes.
_OVERHEAD = 200
_ENTRY_OVERHEAD = 600


@dataclass(frozen=True, slots=True)
class _Kept:
    """One snapshot: its difference from a key (nothing where it is the key itself), and its queue apart."""

    at: float
    key: bytes
    change: bytes | None
    queue: bytes
    size: int


@dataclass(slots=True)
class _Waiting:
    """A queue entry that several snapshots share: all of it but its age, which follows from when it arrived."""

    serial: int
    entry: Queued
    arrived: float
    seen: float

    def same(self, entry: Queued, uptime_s: float) -> bool:
        mine = self.entry
        return (
            abs(self.arrived - uptime_s + entry.since_s) <= _SAME_ARRIVAL_S
            and mine.state is entry.state
            and mine.reason == entry.reason
            and mine.home == entry.home
        )


class _Queues:
    """The queues of the snapshots: each entry kept once for as long as it says the same, a queue as serial numbers."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Waiting] = {}
        self._by_serial: dict[int, _Waiting] = {}
        self._next = 0
        self._last: tuple[list[int], bytes] = ([], b"")

    def __len__(self) -> int:
        return len(self._by_serial)

    def pack(self, health: Health, at: float) -> bytes:
        """The snapshot's queue in short: the same object as the one before where nothing came or went."""
        by_id, uptime_s = self._by_id, health.uptime_s
        serials: list[int] = []
        for entry in health.queue:
            waiting = by_id.get(entry.id)
            if waiting is None or not waiting.same(entry, uptime_s):
                waiting = self._new(entry, uptime_s, at)
            waiting.seen = at
            serials.append(waiting.serial)
        if serials != self._last[0]:
            steps = array("q", (serial - before for before, serial in zip([0, *serials], serials, strict=False)))
            self._last = (serials, packed_bytes(steps.tobytes()) if serials else b"")
        return self._last[1]

    def unpack(self, packed: bytes, uptime_s: float) -> list[Queued]:
        """The queue as it was when the engine's uptime was `uptime_s`."""
        queue: list[Queued] = []
        serial = 0
        for step in array("q", unpacked_bytes(packed)) if packed else ():
            serial += step
            waiting = self._by_serial[serial]
            queue.append(replace(waiting.entry, since_s=max(0.0, uptime_s - waiting.arrived)))
        return queue

    def forget(self, before: float) -> None:
        """Let go of entries that no snapshot since `before` holds."""
        for waiting in [waiting for waiting in self._by_serial.values() if waiting.seen < before]:
            del self._by_serial[waiting.serial]
            if self._by_id.get(waiting.entry.id) is waiting:
                del self._by_id[waiting.entry.id]

    def _new(self, entry: Queued, uptime_s: float, at: float) -> _Waiting:
        self._next += 1
        waiting = _Waiting(self._next, entry, uptime_s - entry.since_s, at)
        self._by_id[entry.id] = self._by_serial[self._next] = waiting
        return waiting


class Past:
    """A `Timeline` of what arrived. Not thread-safe: its owner is the app's message handler."""

    def __init__(self, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_s = kept_s
        self._kept_bytes = kept_bytes
        self._kept: list[_Kept] = []
        self._times: list[float] = []
        self._queues = _Queues()
        self._newest: Moment | None = None
        self._key: Key | None = None
        self._packed_key = b""
        self._key_at = 0.0
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the snapshots take, their bookkeeping included."""
        return self._bytes + _ENTRY_OVERHEAD * len(self._queues)

    def add(self, health: Health, at: float) -> None:
        """Take in a snapshot received at `at`, not before the one that came last."""
        before = self._kept[-1].queue if self._kept else None
        queue = self._queues.pack(health, at)
        body = msgspec.json.encode(replace(health, queue=[]))
        change = delta(self._key, body) if self._key is not None and at - self._key_at < _KEY_S else None
        if change is None:
            self._key, self._key_at = Key.of(body), at
            self._packed_key = self._key.packed()
        size = _OVERHEAD + len(change or self._packed_key) + (0 if queue is before else len(queue))
        self._kept.append(_Kept(at, self._packed_key, change, queue, size))
        self._times.append(at)
        self._bytes += size
        self._newest = Moment(health, at)
        self._forget(at)

    def latest(self) -> Moment | None:
        return self._newest

    def at(self, when: float) -> Moment | None:
        if not self._kept:
            return None
        kept = self._kept[max(0, bisect_right(self._times, when) - 1)]
        bare = next(_opened([kept]))
        queue = self._queues.unpack(kept.queue, bare.health.uptime_s)
        return Moment(replace(bare.health, queue=queue), kept.at)

    def span(self) -> tuple[float, float] | None:
        return (self._times[0], self._times[-1]) if self._times else None

    def track(self, when: float) -> Track:
        end = bisect_right(self._times, when)
        chosen: list[_Kept] = []
        for kept in self._kept[bisect_left(self._times, when - _REBUILT_S) : end]:
            if not chosen or int(kept.at) != int(chosen[-1].at) or kept.at == self._times[end - 1]:
                chosen.append(kept)
        return track_of(_opened(chosen))

    def _forget(self, now: float) -> None:
        """Let go of what is too old, and of the oldest while the rest is too much."""
        gone = 0
        while gone < len(self._kept) - 1:
            kept = self._kept[gone]
            if now - kept.at <= self._kept_s and self.held_bytes <= self._kept_bytes:
                break
            self._bytes -= kept.size
            gone += 1
            if gone == len(self._kept) - 1 or self._kept[gone].key is not kept.key:
                # Queue entries go with the key that they were kept beside: looked for once a minute, not each time.
                self._queues.forget(self._times[gone])
        del self._kept[:gone], self._times[:gone]


def _opened(several: list[_Kept]) -> Iterator[Moment]:
    """The moments of kept snapshots, their queues apart; a key that follows itself is unpacked once."""
    packed, key = b"", Key(())
    for kept in several:
        if kept.key is not packed:
            packed, key = kept.key, unpacked(kept.key)
        body = key.body if kept.change is None else patched(key, kept.change)
        yield Moment(decode_health(body), kept.at)
