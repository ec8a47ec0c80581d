"""Rates and phases of the last half hour, computed from snapshots: one bucket a second for the engine and each lane."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from console.history.phases import Phase, phase_of
from engine.protocol import Health, Lane, LaneRequest, LaneState

KEPT_SECONDS = 1800
# A reading rate is taken over this long: chunks land in bursts.
_READING_WINDOW_S = 4.0


@dataclass(frozen=True)
class LaneTrack:
    """One lane's past: a rate for each second, oldest first, whether it is reading, and the reading rate now.

    `phases` are the seconds of the request in it since it came, `slot_phases` those of the slot, whoever was in it.
    `spent` is how long the request was in each phase, in order; together, as old as it is.
    """

    rates: tuple[float, ...] = ()
    reading: bool = False
    reading_tok_s: float | None = None
    phases: tuple[Phase, ...] = ()
    slot_phases: tuple[Phase, ...] = ()
    spent: tuple[tuple[Phase, float], ...] = ()


@dataclass(frozen=True)
class Track:
    """A frozen view of the past: total tokens a second, bytes that pages back, and each lane by slot."""

    total: tuple[float, ...] = ()
    committed: tuple[float, ...] = ()
    lanes: dict[int, LaneTrack] = field(default_factory=dict)

    def lane(self, slot: int) -> LaneTrack:
        return self.lanes.get(slot, LaneTrack())


@dataclass
class _Buckets:
    """The mean of each second's samples; the last one is still open."""

    means: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_SECONDS))
    second: int | None = None
    taken: int = 0

    def add(self, second: int, value: float) -> None:
        if self.second is None or second < self.second:
            self.means.clear()
        elif second == self.second:
            self.taken += 1
            self.means[-1] += (value - self.means[-1]) / self.taken
            return
        else:
            # Seconds without a snapshot count as zero, not as the last rate.
            self.means.extend([0.0] * min(second - self.second - 1, KEPT_SECONDS))
        self.means.append(value)
        self.second, self.taken = second, 1


@dataclass
class _Phases:
    """The phase of each second, as it was last seen in it."""

    seconds: deque[Phase] = field(default_factory=lambda: deque(maxlen=KEPT_SECONDS))
    second: int | None = None

    def add(self, second: int, phase: Phase) -> int:
        """How many seconds before this one were not seen."""
        unseen = 0
        if self.second is None or second < self.second:
            self.seconds.clear()
        elif second == self.second:
            self.seconds[-1] = phase
            return 0
        else:
            unseen = second - self.second - 1
            self.seconds.extend([Phase.UNSEEN] * min(unseen, KEPT_SECONDS))
        self.seconds.append(phase)
        self.second = second
        return unseen


def _before_seen(request: LaneRequest) -> dict[Phase, float]:
    """How long a request was in each phase before it was first seen, from the times that it carries itself."""
    age = max(0.0, request.age_s)
    if request.queue_s is None:
        return {Phase.UNSEEN: age}
    waited = max(0.0, min(age, request.queue_s))
    wrote = 0.0 if request.ttft_s is None else max(0.0, age - max(waited, request.ttft_s))
    return {Phase.WAITING: waited, Phase.READING: age - waited - wrote, Phase.WRITING: wrote}


def _in_cells(spent: dict[Phase, float]) -> list[Phase]:
    """The whole seconds of what was spent, one phase after the other."""
    cells: list[Phase] = []
    until = 0.0
    for phase, seconds in spent.items():
        until += seconds
        cells += [phase] * (min(round(until), KEPT_SECONDS) - len(cells))
    return cells[: int(until)]


@dataclass
class _RequestPhases:
    """What one request did: a phase for each second of its age, and how long it was in each."""

    phases: _Phases = field(default_factory=_Phases)
    spent: dict[Phase, float] = field(default_factory=dict)
    age: float = 0.0
    phase: Phase | None = None

    def add(self, request: LaneRequest, phase: Phase) -> None:
        if self.phase is None:
            self.spent = _before_seen(request)
            self.phases.seconds.extend(_in_cells(self.spent))
            self.phases.second = int(request.age_s) - 1
            self.age, self.phase = request.age_s, phase
        unseen = self.phases.add(int(request.age_s), phase)
        self._spend(Phase.UNSEEN, unseen)
        # The phase of the last snapshot lasted until this one.
        self._spend(self.phase, request.age_s - self.age - unseen)
        self.age, self.phase = request.age_s, phase

    def _spend(self, phase: Phase, seconds: float) -> None:
        self.spent[phase] = self.spent.get(phase, 0.0) + max(0.0, seconds)

    def in_order(self) -> tuple[tuple[Phase, float], ...]:
        return tuple((phase, self.spent[phase]) for phase in Phase if self.spent.get(phase, 0.0) > 0.0)


@dataclass
class _LaneHistory:
    slot_phases: _Phases = field(default_factory=_Phases)
    doing: _RequestPhases = field(default_factory=_RequestPhases)
    buckets: _Buckets = field(default_factory=_Buckets)
    request: str | None = None
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, lane: Lane, at: float) -> None:
        request = lane.request
        phase = phase_of(lane)
        self.slot_phases.add(int(at), phase)
        if request is None or request.id != self.request:
            # The rates of a lane are those of its current request.
            self.marks.clear()
            self.buckets = _Buckets()
            self.request = request.id if request else None
            self.doing = _RequestPhases()
        if request is None:
            return
        self.doing.add(request, phase)
        if lane.state is LaneState.DECODING:
            if self.marks:
                self.marks.clear()
                self.buckets = _Buckets()
            self.buckets.add(int(at), request.tok_s or 0.0)
        elif lane.state in (LaneState.PREFILLING, LaneState.YIELDED):
            self.marks.append((at, request.prefill_done))
            while at - self.marks[0][0] > _READING_WINDOW_S and len(self.marks) > 2:
                self.marks.popleft()
            self.buckets.add(int(at), self.reading_tok_s() or 0.0)

    def reading_tok_s(self) -> float | None:
        """Prompt tokens read a second over the window; none before two snapshots, or when nothing moved."""
        if len(self.marks) < 2:
            return None
        (first_at, first), (last_at, last) = self.marks[0], self.marks[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at and last > first else None


class History:
    """Folds snapshots into seconds. Not thread-safe: its owner is the app's message handler."""

    def __init__(self) -> None:
        self._total = _Buckets()
        self._committed = _Buckets()
        self._lanes: dict[int, _LaneHistory] = {}
        self._uptime = 0.0

    def add(self, health: Health, at: float) -> None:
        """Take in a snapshot received at `at` (monotonic seconds). A younger engine starts a new history."""
        if health.uptime_s + 1.0 < self._uptime:
            self._total, self._committed, self._lanes = _Buckets(), _Buckets(), {}
        self._uptime = health.uptime_s
        self._total.add(int(at), total_tok_s(health))
        self._committed.add(int(at), health.kv_pool.committed_bytes)
        for lane in health.lanes:
            self._lanes.setdefault(lane.slot, _LaneHistory()).add(lane, at)

    def track(self) -> Track:
        """The past as it stands, frozen."""
        return Track(
            total=tuple(self._total.means),
            committed=tuple(self._committed.means),
            lanes={
                slot: LaneTrack(
                    rates=tuple(lane.buckets.means),
                    reading=bool(lane.marks),
                    reading_tok_s=lane.reading_tok_s(),
                    phases=tuple(lane.doing.phases.seconds),
                    slot_phases=tuple(lane.slot_phases.seconds),
                    spent=lane.doing.in_order(),
                )
                for slot, lane in self._lanes.items()
            },
        )


def total_tok_s(health: Health) -> float:
    """Tokens a second that all lanes write together now."""
    return sum(lane.request.tok_s or 0.0 for lane in health.lanes if lane.request)


def ended_requests(health: Health) -> int:
    """Requests that ended since the engine's start, and ledger rows written: changes whenever the ledger does."""
    totals = health.parallel.totals
    ended = totals.served + totals.refused + totals.errors + totals.timeouts + totals.abandoned + totals.cancelled
    return ended + health.ledger.written
