"""A valid `/health` snapshot to vary in tests: the contract's example in its own figures."""

from __future__ import annotations

from engine import protocol as p


def lane(slot: int, window: int = 8192, committed_bytes: int = 15728640) -> p.Lane:
    return p.Lane(
        slot=slot,
        kind="main" if slot == 0 else "side",
        window=window,
        state=p.LaneState.IDLE,
        reason=None,
        phase_text="Idle",
        rows=0,
        committed_rows=640,
        resident_rows=0,
        committed_bytes=committed_bytes,
        request=None,
    )


def memory(**changes: object) -> p.Memory:
    """20 of 24 GiB available over the default floors; `changes` replace fields."""
    values: dict[str, object] = {
        "source": "host",
        "total": 25769803776,
        "available": 20401094656,
        "floor": 2576980377,
        "hard_floor": 1717986918,
        "ceiling": None,
        "peak": None,
        "fixed": 0,
        "split": p.MemorySplit(
            weights=98362432,
            kv_committed=47185920,
            caches=0,
            state=0,
            graphs=0,
            workspace=10485760,
            allocator_free=0,
            roles=0,
            outside=5212675008,
        ),
        "devices": [],
    }
    return p.Memory(**{**values, **changes})  # type: ignore[arg-type]


def health(
    *, lanes: list[p.Lane] | None = None, mem: p.Memory | None = None, roles: list[p.Role] | None = None
) -> p.Health:
    lanes = [lane(slot) for slot in range(3)] if lanes is None else lanes
    committed = sum(entry.committed_bytes for entry in lanes)
    return p.Health(
        status=p.Status.OK,
        version="0.1.0",
        snapshot_age_s=0.01,
        uptime_s=81.2,
        last_progress_age_s=0.02,
        loading=None,
        model=p.Model(
            name="smollm2-135m-instruct",
            arch="llama",
            max_len=8192,
            device="cpu",
            weights=p.Weights(bytes=98362432, forms=[]),
        ),
        parallel=p.Parallel(
            requested=len(lanes),
            slots=len(lanes),
            max_running=len(lanes),
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
            side_disk=p.SideDisk(),
            totals=p.Totals(),
        ),
        lanes=lanes,
        queue=[],
        kv_pool=p.KvPool(
            enabled=True,
            backend="host-mmap",
            page_bytes=65536,
            reserved_bytes=566231040,
            committed_bytes=committed,
            committed_pages=committed // 65536,
            peak_committed_bytes=committed,
            by_slot=[entry.committed_bytes for entry in lanes],
            by_kind={"engine": committed, "drafter": 0},
            commits=12,
            releases=3,
            refused=0,
        ),
        memory=memory() if mem is None else mem,
        cache={},
        roles=[] if roles is None else roles,
        speculation=p.Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
    )
