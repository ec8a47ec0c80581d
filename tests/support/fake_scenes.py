"""Scripted `/health` bodies, one function of time a scene: what the console shows in tests and by hand."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine.protocol import (
    CacheLevel,
    Health,
    KvPool,
    LadderLevel,
    Lane,
    LaneState,
    LedgerState,
    Loading,
    Memory,
    MemorySplit,
    Model,
    Parallel,
    Queued,
    Role,
    RoleState,
    RoundStat,
    SideDisk,
    Speculation,
    Status,
    Totals,
    WaitState,
    WeightFormat,
    Weights,
)
from tests.support.fake_lanes import PAGE, ROW_BYTES, WINDOW, lane, reading, writing

MIB = 1 << 20
GIB = 1 << 30

Scene = Callable[[float], Health]

RoleRow = tuple[str, RoleState, int, int | None, str]
"""Name, state, claim and measured size in MiB, reason."""

PLANNED: tuple[RoleRow, ...] = (
    ("decider", RoleState.PLANNED, 3072, None, "roles do not run yet; the plan would load it"),
    ("narrator", RoleState.PLANNED, 4608, None, "roles do not run yet; the plan would load it"),
    (
        "shadow-reader",
        RoleState.PLANNED,
        6656,
        None,
        "roles do not run yet; the plan would refuse it: would leave 4.46 GiB, above the 2.4 GiB floor but under "
        "6.4 GiB, the floor plus the 4 GiB margin",
    ),
)
LOADED: tuple[RoleRow, ...] = (
    ("decider", RoleState.LOADED, 420, 388, "answers yes-or-no questions beside the engine"),
    ("narrator", RoleState.PLANNED, 300, None, "the plan would load it"),
    (
        "shadow-reader",
        RoleState.UNLOADED_FOR_MEMORY,
        6656,
        None,
        "not loaded, kept free for requests: would leave 1.22 GiB, under the 2.40 GiB floor",
    ),
)


def health(
    t: float,
    lanes: list[Lane],
    queue: list[Queued] | None = None,
    *,
    status: Status = Status.OK,
    roles: tuple[RoleRow, ...] = PLANNED,
) -> Health:
    """A body whose books add up, for the lanes given."""
    queue = queue or []
    stats = round_stats(t)
    by_slot = [entry.committed_bytes for entry in lanes]
    committed = sum(by_slot)
    split = MemorySplit(
        weights=96_468_992,
        kv_committed=committed,
        caches=0,
        state=0,
        graphs=0,
        workspace=20 * MIB,
        allocator_free=0,
        roles=sum((measured or 0) * MIB for _, _, _, measured, _ in roles),
        outside=4_212_675_008,
    )
    total = 24 * GIB
    used = split.weights + committed + split.caches + split.workspace + split.roles + split.outside
    running = sum(entry.request is not None for entry in lanes)
    decoding = sum(entry.state is LaneState.DECODING for entry in lanes)
    return Health(
        status=status,
        version="0.1.0",
        snapshot_age_s=0.01,
        uptime_s=81.2 + t,
        last_progress_age_s=0.02 if running else None,
        loading=None,
        model=Model(
            name="smollm2-135m",
            arch="llama",
            max_len=WINDOW,
            device="cpu",
            weights=Weights(bytes=98_362_432, forms=[WeightFormat(file="q4_1", runs_as="int4 group 32", tensors=210)]),
        ),
        parallel=Parallel(
            requested=4,
            slots=len(lanes),
            max_running=len(lanes),
            max_running_reason=None,
            running=running,
            decoding=decoding,
            waiting=len(queue),
            peak_running=4,
            peak_decoding=3,
            rounds={str(stat.rows): stat.rounds for stat in stats},
            rounds_timed_out=0,
            spill_waits=0,
            slot0_gave_up=0,
            side_disk=SideDisk(),
            totals=Totals(served=41, abandoned=1),
        ),
        lanes=lanes,
        queue=queue,
        kv_pool=KvPool(
            enabled=True,
            backend="host-mmap",
            page_bytes=PAGE,
            reserved_bytes=len(lanes) * WINDOW * ROW_BYTES,
            committed_bytes=committed,
            committed_pages=committed // PAGE,
            peak_committed_bytes=max(committed, 96 * MIB),
            by_slot=by_slot,
            by_kind={"engine": committed, "drafter": 0},
            commits=12 + int(t),
            releases=3,
            refused=0,
        ),
        memory=Memory(
            source="host",
            total=total,
            available=total - used,
            floor=2_576_980_377,
            hard_floor=1_717_986_918,
            ceiling=None,
            peak=None,
            fixed=0,
            split=split,
            devices=[],
            ladder=ladder(lanes),
        ),
        cache={"resident": CacheLevel(entries=1, hits=4, restored_tokens=1024)},
        roles=[planned(row, total - used, 70.0 + t) for row in roles],
        speculation=Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
        round_stats=stats,
        ledger=LedgerState(enabled=True, written=42),
    )


def round_stats(t: float) -> list[RoundStat]:
    """Rounds by the slots that shared them; a wider round takes longer, and less for each slot."""
    counts = {1: 411 + int(t), 2: 96, 3: 45 + int(3 * t), 4: 12}
    return [
        RoundStat(
            rows=rows,
            rounds=count,
            mean_ms=6.4 + 1.7 * rows,
            p95_ms=7.0 + 2.2 * rows,
            tokens_per_round=float(rows),
            ms_total=count * (6.4 + 1.7 * rows),
        )
        for rows, count in counts.items()
    ]


def ladder(lanes: list[Lane]) -> list[LadderLevel]:
    """Nothing was ever asked to give back."""
    idle = [entry.committed_bytes if entry.request is None else 0 for entry in lanes]
    return [
        LadderLevel(level=name, held_bytes=held, reclaims=0, freed_bytes=0, last_age_s=None, last_reason=None)
        for name, held in (("idle side conversations", sum(idle[1:])), ("slot 0's idle conversation", sum(idle[:1])))
    ]


def planned(row: RoleRow, available: int, since_s: float) -> Role:
    """A role with the planner's figures for the memory `available`."""
    name, state, claim, measured, reason = row
    refused = "refuse" in reason or state in (RoleState.REFUSED, RoleState.UNLOADED_FOR_MEMORY)
    return Role(
        name=name,
        kind=name.split("-", maxsplit=1)[0],
        state=state,
        claim_bytes=claim * MIB,
        measured_bytes=None if measured is None else measured * MIB,
        reason=reason,
        since_s=since_s,
        reloads=0,
        decision="keep" if state is RoleState.LOADED else "refuse" if refused else "load",
        headroom_after=available - claim * MIB,
        to_fit="1.94 GiB more for floor and margin: a shorter window, a smaller margin, or fewer slots"
        if refused
        else None,
        claim_source="declared" if measured is None else "measured",
    )


def idle(t: float) -> Health:
    """Nothing runs; two slots keep a conversation."""
    return health(t, [lane(0, resident=384), lane(1, resident=2210), lane(2), lane(3)])


def busy(t: float) -> Health:
    """Three lanes write, the fourth is idle."""
    return health(
        t,
        [
            writing(0, t, rate=31.2, client="opencode"),
            writing(1, t, rate=30.4, client="open-webui", start=1.2),
            writing(2, t, rate=29.8, client="curl", start=2.5, limit=1024),
            lane(3, resident=2210),
        ],
    )


def waiting(t: float) -> Health:
    """Every slot is taken, one request waits for a slot and one for memory."""
    lanes = [*busy(t).lanes[:3], reading(3, t, total=6144, rate=410.0, client="aider")]
    body = health(
        t,
        lanes,
        [
            Queued(
                id="req-91aa",
                state=WaitState.SLOT,
                reason="all 4 slots are busy",
                since_s=1.4 + t % 60,
                prompt_tokens=900,
                max_tokens=256,
                home=None,
                client="open-webui",
            ),
            Queued(
                id="req-91ab",
                state=WaitState.MEMORY,
                reason="memory is almost full, this request may take 188 MiB and 84 MiB is free for it: 2.63 GiB "
                "available, 152 MiB promised to 4 running requests, 2.4 GiB kept as the floor",
                since_s=0.6 + t % 60,
                prompt_tokens=7410,
                max_tokens=640,
                home=None,
                client="日本語クライアント",
            ),
        ],
    )
    memory = body.memory
    taken = memory.available - 2694 * MIB
    full = replace(
        memory, available=memory.available - taken, split=replace(memory.split, outside=memory.split.outside + taken)
    )
    return replace(body, memory=full)


def long_read(t: float) -> Health:
    """One long prompt is being read while two lanes write."""
    lanes = busy(t).lanes
    return health(t, [lanes[0], lanes[1], reading(2, t, total=7680, rate=230.0, client="aider"), lanes[3]])


def yielded(t: float) -> Health:
    """The long read gives way to writing lanes."""
    lanes = busy(t).lanes
    still = reading(2, t, total=7680, rate=0.0, client="aider", state=LaneState.YIELDED)
    return health(t, [lanes[0], lanes[1], still, lanes[3]], roles=LOADED)


def loading(t: float) -> Health:
    """Weights are being read; there are no lanes yet."""
    total = 98_362_432
    done = min(total, int((0.42 + t / 60) * total))
    body = health(t, [], status=Status.LOADING)
    return replace(
        body,
        uptime_s=1.2 + t,
        model=None,
        roles=[],
        loading=Loading(stage="reading weights", done_bytes=done, total_bytes=total, eta_s=(total - done) / total * 3),
    )


def draining(t: float) -> Health:
    """Told to stop: what runs may finish."""
    return replace(busy(t), status=Status.DRAINING)


def refused(t: float) -> Health:
    """A role that runs was given up for requests, and one was refused for good."""
    why = "would leave 1.22 GiB, under the 2.4 GiB floor"
    roles: tuple[RoleRow, ...] = (
        LOADED[0],
        ("narrator", RoleState.UNLOADED_FOR_MEMORY, 4608, 4310, f"unloaded for a request: {why}"),
        ("shadow-reader", RoleState.REFUSED, 6656, None, f"not loaded, kept free for requests: {why}"),
    )
    return health(t, busy(t).lanes, roles=roles)


def pressure(t: float) -> Health:
    """Memory is short: idle conversations were given back again and again, and one request waits for more."""
    body = waiting(t)
    blocks = LadderLevel(
        level="the allocator's free blocks",
        held_bytes=0,
        reclaims=3,
        freed_bytes=212 * MIB,
        last_age_s=44.0 + t,
        last_reason="req-91a0 needed 96 MiB more to be admitted",
    )
    side, main = body.memory.ladder
    given = [
        blocks,
        replace(
            side,
            reclaims=17 + int(t / 5),
            freed_bytes=(1180 + 24 * int(t / 5)) * MIB,
            last_age_s=t % 5,
            last_reason="the pages of slot 3 needed 4.5 MiB above the 1.6 GiB hard floor",
        ),
        replace(
            main,
            reclaims=1,
            freed_bytes=64 * MIB,
            last_age_s=301.0 + t,
            last_reason="req-9177 needed 61.2 MiB more to be admitted",
        ),
    ]
    return replace(body, memory=replace(body.memory, ladder=given), kv_pool=replace(body.kv_pool, refused=2))


def crowd(t: float) -> Health:
    """Eight lanes and 500 requests that wait, of which a few are for memory, for a home, and for slot 0."""
    clients = ("opencode", "open-webui", "aider", "curl", "日本語クライアント", "a-client-with-a-very-long-name-indeed")
    lanes = [
        writing(slot, t, rate=22.0 + slot, client=clients[slot % len(clients)], start=0.7 * slot, limit=2048)
        for slot in range(6)
    ]
    lanes.append(reading(6, t, total=7680, rate=230.0, client="aider"))
    lanes.append(reading(7, t, total=5120, rate=0.0, client="opencode", state=LaneState.YIELDED))
    reasons = {
        WaitState.SLOT: "all 8 slots are busy",
        WaitState.HOME: "waits up to 3 s for slot 4, which holds its conversation",
        WaitState.SLOT0: "too long for a side slot (8,192 tokens); waits for slot 0",
        WaitState.MEMORY: "waits behind 3 requests that wait for memory",
    }
    states = [WaitState.SLOT] * 7 + [WaitState.HOME, WaitState.SLOT0, WaitState.MEMORY]
    queue = [
        Queued(
            id=f"req-{0xA000 + place:04x}",
            state=(state := states[place % len(states)]),
            reason=reasons[state],
            since_s=t + 0.4 * (500 - place),
            prompt_tokens=120 + 37 * place % 7000,
            max_tokens=256 * (1 + place % 4),
            home=4 if state is WaitState.HOME else None,
            client=clients[place % len(clients)],
        )
        for place in range(500)
    ]
    body = health(t, lanes, queue)
    return replace(body, parallel=replace(body.parallel, requested=8, peak_running=8, peak_decoding=6))


SCENES: dict[str, Scene] = {
    "idle": idle,
    "busy": busy,
    "waiting": waiting,
    "long_read": long_read,
    "yielded": yielded,
    "loading": loading,
    "draining": draining,
    "refused": refused,
    "pressure": pressure,
    "crowd": crowd,
}
