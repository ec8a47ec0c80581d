"""The engine as `/health` shows it: an immutable snapshot, built on the engine thread, read by anyone.

Building one is cheap; memory is measured at most every `MEMORY_EVERY_S`. A rate stands only in the
phase it belongs to, over the last seconds of it.
"""

from __future__ import annotations

from collections import deque
from importlib import metadata

import msgspec

from engine import protocol
from engine.core.counters import Counters
from engine.core.scheduling import reasons
from engine.core.state import EngineState
from engine.memory.budget import Named
from engine.memory.probe import MemoryReading
from engine.protocol import LaneState, Status
from engine.request import Ending
from engine.sequence.request_state import RequestState, Sequence, Slot

MEMORY_EVERY_S = 0.25
STALLED_AFTER_S = 30.0
"""Without a token or a chunk while requests run, or without a snapshot."""

RATE_WINDOW_S = 2.0

_EMPTY_SPLIT = protocol.MemorySplit(
    weights=0, kv_committed=0, caches=0, state=0, graphs=0, workspace=0, allocator_free=0, roles=0, outside=0
)


def version() -> str:
    """The distribution's version; "0" where it is not installed."""
    try:
        return metadata.version("tandem-serve")
    except metadata.PackageNotFoundError:
        return "0"


class Rate:
    """Tokens a second over the last `RATE_WINDOW_S`, from marks of (clock, count)."""

    def __init__(self, at: float, count: int) -> None:
        self._marks = deque([(at, count)])

    def see(self, now: float, count: int) -> float | None:
        marks = self._marks
        if now > marks[-1][0]:
            marks.append((now, count))
        while len(marks) > 2 and marks[1][0] <= now - RATE_WINDOW_S:
            marks.popleft()
        at, before = marks[0]
        return (count - before) / (now - at) if now > at and count > before else None


class SnapshotBuilder:
    """Builds the engine's snapshots. Engine thread only; `started` is the clock when the engine was started."""

    def __init__(self, state: EngineState, started: float) -> None:
        self._state = state
        self._started = started
        self._version = version()
        self._rates: dict[int, tuple[Sequence, LaneState, Rate]] = {}
        self._reading: MemoryReading | None = None
        self._read_at = 0.0

    def build(self, now: float, *, draining: bool) -> protocol.Health:
        state = self._state
        pool = state.pool.stats()
        memory = self._memory(now, pool.committed_bytes)
        return protocol.Health(
            status=Status.DRAINING if draining else Status.OK,
            version=self._version,
            snapshot_age_s=0.0,
            uptime_s=now - self._started,
            last_progress_age_s=None if state.counters.last_progress is None else now - state.counters.last_progress,
            loading=None,
            model=state.info,
            parallel=self._parallel(),
            lanes=[self._lane(slot, now, pool.by_slot[slot.id]) for slot in state.slots],
            queue=[
                queued(req, now, state.served.max_len)
                for req in state.queue
                if not req.admitted and req.waiting is not None
            ],
            kv_pool=pool,
            memory=memory,
            cache={level.name: level.stats() for level in state.levels},
            roles=state.roles.shown(now),
            speculation=protocol.Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
            round_stats=state.meters.round_stats(),
            ledger=protocol.LedgerState() if state.ledger is None else state.ledger.state(),
            defect=state.defect,
        )

    def _parallel(self) -> protocol.Parallel:
        state = self._state
        running = state.running()
        waiting = [req for req in state.queue if not req.admitted]
        held = next(
            (req.waiting.reason for req in waiting if req.waiting and req.waiting.state is protocol.WaitState.MEMORY),
            None,
        )
        return protocol.Parallel(
            requested=state.config.parallel,
            slots=len(state.slots),
            max_running=len(state.slots) if held is None else len(running),
            max_running_reason=held or state.slots_reason,
            running=len(running),
            decoding=sum(c.phase is LaneState.DECODING for c in running),
            waiting=len(waiting),
            peak_running=state.counters.peak_running,
            peak_decoding=state.counters.peak_decoding,
            rounds={str(rows): n for rows, n in state.meters.round_counts().items()},
            rounds_timed_out=0,
            spill_waits=0,
            slot0_gave_up=state.counters.slot0_gave_up,
            side_disk=protocol.SideDisk(),
            totals=totals(state.counters, state.inbox.refused),
        )

    def _lane(self, slot: Slot, now: float, committed_bytes: int) -> protocol.Lane:
        seq = slot.running
        if seq is None:
            self._rates.pop(slot.id, None)
        rate = None if seq is None else self._rate(seq, now)
        return protocol.Lane(
            slot=slot.id,
            kind=slot.kind,
            window=slot.window,
            state=LaneState.IDLE if seq is None else seq.phase,
            reason=None if seq is None else self._standstill(seq),
            phase_text=idle_text(slot) if seq is None else phase_text(seq, rate),
            rows=slot.state.rows,
            committed_rows=self._state.pool.committed_rows(slot.id),
            resident_rows=slot.state.rows,
            committed_bytes=committed_bytes,
            request=None if seq is None else lane_request(seq, rate, now),
        )

    def _standstill(self, seq: Sequence) -> str | None:
        """Why a lane with a request does not move."""
        reading = self._state.prefilling_slot
        if seq.phase is LaneState.DECODING or reading is None or reading == seq.slot.id:
            return None
        reader = self._state.slots[reading].running
        if reader is None:
            return None
        if seq.phase is LaneState.YIELDED:
            return reasons.yielded(reading, reader.remaining_prompt)
        return reasons.read_turn(reading, reader.remaining_prompt)

    def _rate(self, seq: Sequence, now: float) -> float | None:
        phase = seq.phase
        decoding = phase is LaneState.DECODING
        count = seq.generated if decoding else seq.slot.state.rows
        entry = self._rates.get(seq.slot.id)
        if entry is None or entry[0] is not seq or entry[1] is not phase:
            since = seq.first_token if decoding and seq.first_token is not None else seq.started
            base = 1 if decoding else seq.cached
            entry = (seq, phase, Rate(since, base))
            self._rates[seq.slot.id] = entry
        moves = decoding or (phase is LaneState.PREFILLING and self._state.prefilling_slot == seq.slot.id)
        return entry[2].see(now, count) if moves else None

    def _memory(self, now: float, committed_bytes: int) -> protocol.Memory:
        desk = self._state.memory
        if self._reading is None or now - self._read_at >= MEMORY_EVERY_S:
            self._reading = desk.probe.read()
            self._read_at = now
        gpu = self._state.model.kv_memory
        named = Named(
            weights=self._state.info.weights.bytes,
            kv_committed=committed_bytes,
            workspace=self._state.model.runner.workspace_bytes(),
            allocator_free=0 if gpu is None else gpu.blocks.free(),
        )
        split = desk.meter.split(self._reading, named)
        shown = memory(self._reading, desk.floors.floor, desk.floors.hard_floor, split)
        shown = msgspec.structs.replace(shown, ladder=desk.ladder.levels(now))
        if gpu is None:
            return shown
        return msgspec.structs.replace(shown, devices=[device(gpu.name, shown), device("host", self._host())])

    def _host(self) -> protocol.Memory:
        """The host beside a GPU: nothing of the engine's is named there, and nothing keeps a floor of it."""
        reading = self._state.memory.host.read()
        return memory(reading, 0, 0, msgspec.structs.replace(_EMPTY_SPLIT, outside=reading.used))


def memory(reading: MemoryReading, floor: int, hard_floor: int, split: protocol.MemorySplit) -> protocol.Memory:
    return protocol.Memory(
        source=reading.source,
        total=reading.total,
        available=reading.available,
        floor=floor,
        hard_floor=hard_floor,
        ceiling=None,
        peak=None,
        fixed=0,
        split=split,
        devices=[],
        reading_age_s=reading.age_s,
    )


def device(name: str, shown: protocol.Memory) -> protocol.DeviceMemory:
    """One memory among several."""
    return protocol.DeviceMemory(
        name=name,
        source=shown.source,
        total=shown.total,
        available=shown.available,
        floor=shown.floor,
        hard_floor=shown.hard_floor,
        split=shown.split,
    )


def totals(counters: Counters, refused_at_door: int) -> protocol.Totals:
    ended = counters.endings
    return protocol.Totals(
        served=ended[Ending.SERVED],
        refused=ended[Ending.REFUSED] + refused_at_door,
        errors=ended[Ending.ERROR],
        timeouts=ended[Ending.TIMEOUT],
        abandoned=ended[Ending.ABANDONED],
        cancelled=ended[Ending.CANCELLED],
        waiting_memory=counters.waiting_memory,
    )


def idle_text(slot: Slot) -> str:
    """What an idle lane keeps, in a few words."""
    return f"Idle, holds {slot.state.rows:,} tokens" if slot.state.rows else "Idle"


def phase_text(seq: Sequence, rate: float | None) -> str:
    """What a lane does, in a few words."""
    if seq.phase is LaneState.DECODING:
        return "Writing" if rate is None else f"Writing, {rate:,.1f} tok/s"
    read = f"{min(seq.slot.state.rows, seq.prompt_len):,} of {seq.prompt_len:,}"
    if seq.phase is LaneState.YIELDED:
        return f"Gave way at {read}"
    return f"Reading {read}" if rate is None else f"Reading {read}, {rate:,.0f} tok/s"


def lane_request(seq: Sequence, rate: float | None, now: float) -> protocol.LaneRequest:
    req = seq.req
    decoding = seq.phase is LaneState.DECODING
    return protocol.LaneRequest(
        id=req.request.id,
        client=req.request.client,
        prompt_tokens=seq.prompt_len,
        cached_tokens=seq.cached,
        completion_tokens=seq.generated,
        max_tokens=seq.max_tokens,
        ttft_s=None if seq.first_token is None else seq.first_token - req.arrived,
        tok_s=rate if decoding else None,
        prefill_done=min(seq.slot.state.rows, seq.prompt_len),
        prefill_total=seq.prompt_len,
        accepted_per_round=(seq.generated - 1) / seq.rounds if decoding and seq.rounds else None,
        age_s=now - req.arrived,
        queue_s=seq.started - req.arrived,
        worst_gap_s=seq.worst_gap_s,
    )


def queued(req: RequestState, now: float, window: int) -> protocol.Queued:
    """A waiting request; `max_tokens` is what it asked for, or the room that the window leaves it."""
    assert req.waiting is not None
    room = window - req.prompt_len
    return protocol.Queued(
        id=req.request.id,
        state=req.waiting.state,
        reason=req.waiting.reason,
        since_s=now - req.waiting_since,
        prompt_tokens=req.prompt_len,
        max_tokens=room if req.request.max_tokens is None else req.request.max_tokens,
        home=req.home,
        client=req.request.client,
    )


def before_serving(
    requested: int,
    *,
    loading: protocol.Loading,
    reading: MemoryReading,
    uptime_s: float,
    ledger: protocol.LedgerState,
    refused: int,
) -> protocol.Health:
    """The snapshot while the model loads: nothing is there but the memory, the ledger, the progress, and the count of
    those who came too early."""
    return protocol.Health(
        status=Status.LOADING,
        version=version(),
        snapshot_age_s=0.0,
        uptime_s=uptime_s,
        last_progress_age_s=None,
        loading=loading,
        model=None,
        parallel=protocol.Parallel(
            requested=requested,
            slots=0,
            max_running=0,
            max_running_reason=None,
            running=0,
            decoding=0,
            waiting=0,
            peak_running=0,
            peak_decoding=0,
            rounds={},
            rounds_timed_out=0,
            spill_waits=0,
            slot0_gave_up=0,
            side_disk=protocol.SideDisk(),
            totals=protocol.Totals(refused=refused),
        ),
        lanes=[],
        queue=[],
        kv_pool=protocol.KvPool(
            enabled=True,
            backend="",
            page_bytes=0,
            reserved_bytes=0,
            committed_bytes=0,
            committed_pages=0,
            peak_committed_bytes=0,
            by_slot=[],
            by_kind={},
            commits=0,
            releases=0,
            refused=0,
        ),
        memory=memory(reading, 0, 0, msgspec.structs.replace(_EMPTY_SPLIT, outside=reading.total - reading.available)),
        cache={},
        roles=[],
        speculation=protocol.Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
        ledger=ledger,
    )


def aged(health: protocol.Health, age_s: float) -> protocol.Health:
    """A snapshot as it reads `age_s` after it was taken: older, and stalled where that makes it so.

    An idle engine thread publishes several times a second. One that has published nothing for long is stuck, also where
    its last snapshot shows no request: those that came since wait unseen.
    """
    idle = health.last_progress_age_s
    progress = None if idle is None else idle + age_s
    status = health.status
    stands = max((lane.request.age_s for lane in health.lanes if lane.request is not None), default=0.0) + age_s
    quiet = stands if progress is None else min(progress, stands)
    stuck = age_s > STALLED_AFTER_S or (health.parallel.running > 0 and quiet > STALLED_AFTER_S)
    if status is Status.OK and stuck:
        status = Status.STALLED
    return msgspec.structs.replace(
        health, status=status, snapshot_age_s=age_s, uptime_s=health.uptime_s + age_s, last_progress_age_s=progress
    )
