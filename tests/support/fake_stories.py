"""Scripted `/health` bodies with a past worth a picture: requests in every phase, drafts, several devices."""

from __future__ import annotations

from msgspec.structs import replace

from engine.protocol import DeviceMemory, Health, Lane, LaneRequest, LaneState, MemorySplit, RoundStat, Speculation
from tests.support.fake_lanes import lane, writing
from tests.support.fake_scenes import GIB, MIB, Scene, busy, crowd, health

QUEUED, RESTORING, READING, YIELDED = 5.0, LaneState.RESTORING, LaneState.PREFILLING, LaneState.YIELDED

# From which second after a request's slot it is in which state.
_ACTS = ((0.0, RESTORING), (2.0, READING), (9.0, YIELDED), (14.0, READING), (19.0, LaneState.DECODING))


def _staged(slot: int, t: float, client: str) -> Lane:
    """A lane whose request waited, was restored, read, gave way, read on and writes since."""
    state = [state for begin, state in _ACTS if t >= begin][-1]
    total, still = 3600, 1100
    reading = (t - 2) * 160 if t < 9 else still + (t - 14) * 500
    done = min(total, int({RESTORING: 0.0, READING: reading, YIELDED: still}.get(state, total)))
    wrote = max(0, int((t - 19) * 24))
    texts = {
        RESTORING: "Restoring 512 rows",
        READING: f"Reading {done:,} of {total:,}",
        YIELDED: f"Gave way at {done:,} of {total:,}",
    }
    return lane(
        slot,
        state,
        texts.get(state, "Writing, 24.0 tok/s"),
        rows=done + wrote,
        reason="gives way to the shorter prompt in slot 2 (212 tokens to read)" if state is YIELDED else None,
        request=LaneRequest(
            id=f"req-{0x6C00 + slot:04x}",
            client=client,
            prompt_tokens=total,
            cached_tokens=512,
            completion_tokens=wrote,
            max_tokens=1024,
            ttft_s=QUEUED + 19.0 if t >= 19 else None,
            tok_s=24.0 if t >= 19 else None,
            prefill_done=done,
            prefill_total=total,
            accepted_per_round=1.8 if t >= 19 else None,
            age_s=QUEUED + t,
            queue_s=QUEUED,
            worst_gap_s=0.21 if wrote > 1 else None,
        ),
    )


def story(t: float) -> Health:
    """Four slots at different points of one way: through the queue, reading, giving way, writing, done."""
    done = lane(3, resident=1460) if t >= 22 else writing(3, t, rate=40.0, client="curl", limit=1024)
    return health(
        t,
        [
            writing(0, t, rate=31.2, client="opencode", limit=2048),
            _staged(1, t, "aider"),
            _staged(2, max(0.0, t - 18.0), "open-webui"),
            done,
        ],
    )


def drafting(t: float) -> Health:
    """Eight slots with a drafter: most rounds are wide and write more than a token a slot."""
    stats = [
        RoundStat(
            rows=rows,
            rounds=count + int(t),
            mean_ms=11.0 + 2.9 * rows,
            p95_ms=12.5 + 3.6 * rows,
            tokens_per_round=1.9 * rows,
            ms_total=(count + int(t)) * (11.0 + 2.9 * rows),
        )
        for rows, count in enumerate((1240, 610, 388, 402, 951, 1630, 2210, 3105), 1)
    ]
    speculation = Speculation(
        drafters=["lookup", "suffix"],
        rounds=10_536,
        drafted=91_200,
        accepted=44_807,
        accepted_by_depth=[21_840, 12_411, 6_702, 2_905, 949],
    )
    body = crowd(t)
    parallel = replace(body.parallel, waiting=0)
    return replace(body, queue=[], parallel=parallel, round_stats=stats, speculation=speculation)


def devices(t: float) -> Health:
    """KV on a GPU, with a second GPU and the host beside it, and more in use than anything accounts for."""
    body = busy(t)
    split = replace(body.memory.split, weights=14 * GIB, caches=3 * GIB, graphs=512 * MIB, outside=1 * GIB)
    named = sum(getattr(split, name) for name in MemorySplit.__struct_fields__)
    gpu = {"source": "gpu", "total": 48 * GIB, "floor": int(4.8 * GIB), "hard_floor": int(3.2 * GIB)}
    used = named + 700 * MIB
    first = DeviceMemory(name="cuda:0", available=48 * GIB - used, split=split, **gpu)
    empty = MemorySplit(**dict.fromkeys(MemorySplit.__struct_fields__, 0))
    other = replace(empty, weights=13 * GIB, outside=2 * GIB)
    second = DeviceMemory(name="cuda:1", available=33 * GIB, split=other, **gpu)
    memory = replace(
        body.memory,
        available=first.available,
        split=split,
        devices=[first, second],
        **gpu,
    )
    return replace(body, memory=memory)


STORIES: dict[str, Scene] = {"story": story, "drafting": drafting, "devices": devices}
