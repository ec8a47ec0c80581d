"""From a configuration to an engine ready to serve: load, measure, fit the slots, reserve their windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, time

import msgspec

from engine.cache.resident import IdleConversations, ResidentLevel
from engine.config import EngineConfig
from engine.core import log_lines as records
from engine.core.scheduling.inbox import Inbox
from engine.core.scheduling.prefill import DecodeShare
from engine.core.state import Clock, EngineState, LoadedModel, MemoryManager
from engine.execution.cuda.memory import KvMemory
from engine.execution.devices import UnusableDevice, without_gpu
from engine.memory.admission import Reservations
from engine.memory.budget import KvBacking, SlotCost, SplitMeter, default_floors, fit_slots
from engine.memory.kv.layout import KvLayout
from engine.memory.kv.pool import KvPool
from engine.memory.pressure import HardFloor, Level, PressureLadder
from engine.memory.probe import MemoryProbe, SteadyProbe, open_probe
from engine.memory.sizes import size
from engine.process.ledger.store import FILE_NAME
from engine.process.ledger.writer import Ledger
from engine.protocol import Loading
from engine.roles.planned import PlannedRoles
from engine.sequence.request_state import Slot

SIDE_WINDOW = 65_536
MIN_ROOM = 16_384
CHUNK_ROWS = 64
"""Prompt rows between two rounds where no setting names them. On a CPU they are read as fast as 128 a chunk, and a
stream beside the read waits half as long."""
DECODE_SHARE, GPU_DECODE_SHARE = 0.5, 0.35
"""The share of the time that decoding keeps where no setting names it: on the host, and on a GPU, where a chunk is
over so soon that a prompt need not take more than 1.6 times as long to read beside others as alone."""

Progress = Callable[[Loading], None]
Load = Callable[[EngineConfig, Progress], LoadedModel]


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Load the model that `config` names."""
    from engine.core.loading import load  # brings the kernels: only a process that serves pays for them

    return load(config, progress)


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of besides its configuration; tests bring their own."""

    load: Load = load_model
    probe: Callable[[], MemoryProbe] = open_probe
    clock: Clock = monotonic
    wall: Clock = time


@dataclass(frozen=True, slots=True)
class Windows:
    """The slots' windows in tokens, slot 0 first, and the least room that an answer gets on a side slot."""

    slots: tuple[int, ...]
    min_room: int


def resolve_windows(config: EngineConfig, model_len: int) -> Windows:
    """Slot 0 has the full window, the others the side window.

    Raises ValueError where a length or the slot count is below its least value.
    """
    if config.parallel < 1:
        raise ValueError(f"TANDEM_PARALLEL must be at least 1, got {config.parallel}")
    main = min(config.max_len or model_len, model_len)
    side = min(config.side_max_len or SIDE_WINDOW, main)
    if side < 2:
        raise ValueError(f"a window must hold at least 2 tokens, got {side} (TANDEM_MAX_LEN, TANDEM_SIDE_MAX_LEN)")
    room = config.side_min_room if config.side_min_room is not None else min(MIN_ROOM, side // 4)
    return Windows((main,) + (side,) * (config.parallel - 1), max(1, room))


def boot(config: EngineConfig, parts: Parts, inbox: Inbox, progress: Progress) -> EngineState:
    """Load the model and build what serves it; with "auto", on the CPU where the GPU turns out not to do.

    Raises what loading raises, ValueError for settings that make no sense, CommitRefused where whole windows cannot be
    backed, UnusableDevice where a GPU that was named does not do.
    """
    try:
        return _build(config, parts, inbox, progress)
    except UnusableDevice as why:
        if config.device != "auto":
            raise
        reason = str(why)
    records.on_cpu(reason)
    state = _build(replace(config, device="cpu"), parts, inbox, progress)
    backend = without_gpu(state.info.backend or "cpu", reason)
    state.info = msgspec.structs.replace(state.info, backend=backend)
    return state


def _build(config: EngineConfig, parts: Parts, inbox: Inbox, progress: Progress) -> EngineState:
    host = SteadyProbe(parts.probe(), parts.clock)
    baseline = host.read()
    share = DecodeShare(DECODE_SHARE if config.decode_share is None else config.decode_share)
    model = parts.load(config, progress)
    gpu = model.kv_memory
    if gpu is not None and config.decode_share is None:
        share = DecodeShare(GPU_DECODE_SHARE)
    probe = host if gpu is None else SteadyProbe(gpu.probe, parts.clock)
    if gpu is not None:
        baseline = gpu.baseline
    windows = resolve_windows(config, model.served.max_len)
    runner = model.runner
    floors = default_floors(baseline.total, config.floor_bytes, config.hard_floor_bytes)
    pooled = config.kv_pool and (gpu is None or gpu.whole_windows is None)
    backing = KvBacking.POOLED if pooled else KvBacking.WHOLE_WINDOW
    fit = fit_slots(
        config.parallel,
        windows.slots,
        SlotCost(engine_bytes=0, state_bytes=0, row_bytes=runner.layout.row_bytes),
        available=probe.read().available,
        floor=floors.floor,
        kv=backing,
    )
    if fit.slots > runner.max_rows:
        raise ValueError(f"{fit.slots} slots need {fit.slots} rows a pass, the model's runner takes {runner.max_rows}")
    kept = windows.slots[: fit.slots]
    # Whole windows are backed here, before there is anything to give back.
    alone = HardFloor(probe, floors.hard_floor, PressureLadder())
    if gpu is None:
        pool = KvPool(runner.layout, kept, margin_rows=config.kv_margin_rows, backing=backing, guard=alone)
    else:
        pool = _gpu_pool(
            gpu, runner.layout, windows=kept, margin_rows=config.kv_margin_rows, backing=backing, guard=alone
        )
    slots = tuple(Slot(i, window) for i, window in enumerate(kept))
    resident = ResidentLevel()
    allocator = [] if gpu is None else [gpu.blocks]
    ladder = PressureLadder([*allocator, *_rungs(slots, resident, pool)], clock=parts.clock)
    pool.guard = HardFloor(probe, floors.hard_floor, ladder)
    runner.attach(pool, len(slots))
    return EngineState(
        config=config,
        clock=parts.clock,
        wall=parts.wall,
        inbox=inbox,
        model=model,
        served=replace(model.served, max_len=kept[0]),
        info=msgspec.structs.replace(model.info, max_len=kept[0]),
        pool=pool,
        slots=slots,
        slots_reason=fit.reason,
        min_room=windows.min_room,
        chunk=min(config.prefill_chunk or (CHUNK_ROWS if gpu is None else runner.max_rows), runner.max_rows),
        resident=resident,
        memory=MemoryManager(probe, floors, SplitMeter(baseline), ladder, Reservations(), host),
        share=share,
        roles=PlannedRoles.of(config),
    )


def _gpu_pool(
    gpu: KvMemory, layout: KvLayout, *, windows: tuple[int, ...], margin_rows: int, backing: KvBacking, guard: HardFloor
) -> KvPool:
    """Raises UnusableDevice where the GPU has not the addresses, or not the memory for whole windows."""
    try:
        return KvPool(layout, windows, margin_rows=margin_rows, backing=backing, guard=guard, ranges=gpu.ranges)
    except (OSError, MemoryError) as error:
        need = sum(windows) * layout.row_bytes
        raise UnusableDevice(
            f"{gpu.name}: {len(windows)} windows of {max(windows)} tokens and less need {size(need)} of addresses, "
            f"which cannot be reserved ({error}); lower TANDEM_MAX_LEN, TANDEM_SIDE_MAX_LEN or TANDEM_PARALLEL"
        ) from error


def open_ledger(config: EngineConfig, wall: Clock) -> Ledger | None:
    """The ledger that `config` asks for; its thread is still to be started."""
    if config.state_dir is None or config.ledger_days <= 0:
        return None
    return Ledger(config.state_dir / FILE_NAME, days=config.ledger_days, rows=config.ledger_rows, wall=wall)


def _rungs(slots: tuple[Slot, ...], resident: ResidentLevel, pool: KvPool) -> list[IdleConversations]:
    def give_back(slot: Slot) -> None:
        pool.release(slot.id, 0)

    return [
        IdleConversations(
            name, level=level, slots=some, resident=resident, committed=pool.committed_bytes, give_back=give_back
        )
        for name, level, some in (
            ("idle side conversations", Level.SIDE_CONVERSATION, slots[1:]),
            ("slot 0's idle conversation", Level.MAIN_CONVERSATION, slots[:1]),
        )
    ]
