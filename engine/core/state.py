"""What the engine thread owns while it serves: one place that its steps share. No other thread touches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine import protocol
from engine.api import ServedModel
from engine.cache.level import CacheLevel
from engine.cache.resident import ResidentLevel
from engine.config import EngineConfig
from engine.core.counters import Counters
from engine.core.meters import Meters
from engine.core.scheduling.inbox import Inbox
from engine.core.scheduling.prefill import DecodeShare
from engine.execution.cuda.memory import KvMemory
from engine.execution.runner import Runner
from engine.memory.admission import Reservations
from engine.memory.budget import Floors, SplitMeter
from engine.memory.kv.pool import KvPool
from engine.memory.pressure import PressureLadder
from engine.memory.probe import MemoryProbe
from engine.process.ledger.writer import Ledger
from engine.protocol import LaneState
from engine.roles.planned import PlannedRoles
from engine.sequence.request_state import RequestState, Sequence, Slot

Clock = Callable[[], float]
"""Seconds that only ever grow; as `wall`, the Unix time, which may be set back."""


class LoadedModel(Protocol):
    """A model ready to run, as the loader hands it over."""

    @property
    def runner(self) -> Runner: ...

    @property
    def served(self) -> ServedModel: ...

    @property
    def info(self) -> protocol.Model: ...

    @property
    def kv_memory(self) -> KvMemory | None:
        """Where the KV lies; None for the host's memory."""
        ...


@dataclass(slots=True)
class MemoryManager:
    """The memory side of the engine: who measures, who is asked to give back, what is promised, what is kept."""

    probe: MemoryProbe
    floors: Floors
    meter: SplitMeter
    ladder: PressureLadder
    reservations: Reservations
    host: MemoryProbe
    """Measures the host, the same as `probe` where the KV lies there."""


@dataclass(slots=True)
class EngineState:
    """Everything that the steps of a turn read and change."""

    config: EngineConfig
    clock: Clock
    wall: Clock
    inbox: Inbox
    model: LoadedModel
    served: ServedModel
    info: protocol.Model
    pool: KvPool
    slots: tuple[Slot, ...]
    slots_reason: str | None
    min_room: int
    chunk: int
    resident: ResidentLevel
    memory: MemoryManager
    share: DecodeShare
    counters: Counters = field(default_factory=Counters)
    meters: Meters = field(default_factory=Meters)
    ledger: Ledger | None = None
    requests: dict[str, RequestState] = field(default_factory=dict)
    queue: list[RequestState] = field(default_factory=list)
    roles: PlannedRoles = field(default_factory=PlannedRoles)
    prefilling_slot: int | None = None
    defect: str | None = None
    """What the books disagreed about when the engine last fell idle."""
    queue_unchanged: bool = False
    """No waiting request's decision can have changed since the last look at the queue, time aside."""

    @property
    def levels(self) -> tuple[CacheLevel, ...]:
        """Every level at which conversations are kept."""
        return (self.resident,)

    def running(self) -> list[Sequence]:
        return [s.running for s in self.slots if s.running is not None]

    def decoding(self) -> list[Sequence]:
        return [c for s in self.slots if (c := s.running) is not None and c.phase is LaneState.DECODING]

    def prefilling(self) -> list[Sequence]:
        return [c for s in self.slots if (c := s.running) is not None and c.phase is not LaneState.DECODING]
