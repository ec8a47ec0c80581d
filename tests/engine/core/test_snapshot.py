"""What `/health` says is what is so, in every phase, and never waits for a pass."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine import protocol
from engine.core.snapshot import STALLED_AFTER_S, Rate, aged
from engine.execution.rows import RowBatch
from engine.protocol import LaneState, Loading, Status
from tests.support.fake_model import Rig

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]
LONG = [i % 500 + 1 for i in range(190)]


def timed(r: Rig, seconds: float) -> None:
    r.runner.before = lambda batch: r.clock.advance(seconds)


def fresh(r: Rig) -> protocol.Health:
    """A snapshot of right now."""
    r.engine._publisher.publish(draining=False, at_once=True)
    return r.engine.health()


def test_an_idle_engine(rig: Make) -> None:
    health = fresh(rig(parallel=2, max_len=256, side_max_len=64))
    assert (health.status, health.loading, health.last_progress_age_s) == (Status.OK, None, None)
    assert [(lane.kind, lane.window, lane.state, lane.phase_text) for lane in health.lanes] == [
        ("main", 256, LaneState.IDLE, "Idle"),
        ("side", 64, LaneState.IDLE, "Idle"),
    ]
    assert all(lane.request is None and lane.reason is None for lane in health.lanes)
    assert health.model is not None
    assert health.model.max_len == 256
    parallel = health.parallel
    assert (parallel.requested, parallel.slots, parallel.max_running, parallel.max_running_reason) == (2, 2, 2, None)
    assert health.queue == []
    assert protocol.decode_health(protocol.encode(health)) == health


def test_a_lane_reading_then_writing(rig: Make) -> None:
    r = rig(parallel=1, prefill_chunk=16)
    timed(r, 0.1)
    r.submit(LONG, 20, first_user_end=5)
    r.turns(4)
    lane = fresh(r).lanes[0]
    assert lane.request is not None
    assert (lane.state, lane.phase_text) == (LaneState.PREFILLING, "Reading 64 of 190, 160 tok/s")
    assert (lane.request.prefill_done, lane.request.prefill_total) == (64, 190)
    assert (lane.request.tok_s, lane.request.ttft_s, lane.request.accepted_per_round) == (None, None, None)
    assert (lane.rows, lane.resident_rows, lane.committed_rows) == (64, 64, 80)
    r.turns(8 + 6)
    health = fresh(r)
    lane = health.lanes[0]
    assert lane.request is not None
    assert (lane.state, lane.phase_text) == (LaneState.DECODING, "Writing, 10.0 tok/s")
    assert lane.request.tok_s == pytest.approx(10.0)
    assert lane.request.ttft_s == pytest.approx(1.2)
    assert lane.request.completion_tokens == 8
    assert lane.request.accepted_per_round == 1.0
    assert health.parallel.decoding == health.parallel.running == 1
    assert health.last_progress_age_s == pytest.approx(0.0)


def test_committed_rows_bytes_and_books_agree(rig: Make) -> None:
    r = rig(parallel=3)
    for prompt in (LONG, PROMPT, PROMPT[::-1]):
        r.submit(prompt, 30)
        r.turns(5)
        health = fresh(r)
        pool = health.kv_pool
        assert sum(pool.by_slot) == sum(pool.by_kind.values()) == pool.committed_bytes
        assert pool.committed_bytes == pool.committed_pages * pool.page_bytes
        assert [lane.committed_bytes for lane in health.lanes] == pool.by_slot
        assert all(lane.rows <= lane.committed_rows <= lane.window for lane in health.lanes if lane.request)
        assert health.memory.split.kv_committed == pool.committed_bytes


def test_rates_stand_only_in_their_phase_and_fall_when_nothing_comes() -> None:
    rate = Rate(10.0, 0)
    assert rate.see(10.0, 0) is None
    assert rate.see(11.0, 40) == pytest.approx(40.0)
    assert rate.see(12.0, 60) == pytest.approx(30.0)
    assert rate.see(14.0, 60) is None
    assert rate.see(15.0, 70) == pytest.approx(10 / 3)


def test_a_snapshot_ages_and_stalls_as_it_is_read(rig: Make) -> None:
    r = rig(parallel=1)
    timed(r, 0.1)
    r.submit(PROMPT, 50)
    r.turns(5)
    taken = fresh(r)
    r.clock.advance(29.0)
    health = r.engine.health()
    assert (health.status, health.snapshot_age_s) == (Status.OK, pytest.approx(29.0))
    assert health.uptime_s == pytest.approx(taken.uptime_s + 29.0)
    r.clock.advance(2.0)
    assert r.engine.health().status is Status.STALLED
    assert r.engine.health().last_progress_age_s == pytest.approx(31.0)
    r.turns(1)
    assert fresh(r).status is Status.OK


def test_an_idle_engine_never_stalls_while_it_publishes(rig: Make) -> None:
    r = rig(parallel=1)
    r.submit(PROMPT, 5)
    r.run_until_idle()
    r.clock.advance(1000.0)
    r.turns(1)
    assert r.engine.health().status is Status.OK


def test_an_engine_thread_that_publishes_nothing_has_stalled_whatever_it_showed_last(rig: Make) -> None:
    """A request that came since is not in the snapshot, and waits all the same."""
    r = rig(parallel=1)
    r.submit(PROMPT, 5)
    r.run_until_idle()
    idle = fresh(r)
    assert (idle.parallel.running, idle.status) == (0, Status.OK)
    assert aged(idle, STALLED_AFTER_S - 1).status is Status.OK
    assert aged(idle, STALLED_AFTER_S + 1).status is Status.STALLED


def test_a_request_that_just_came_has_not_stalled(rig: Make) -> None:
    r = rig(parallel=1)
    r.submit(PROMPT, 1)
    r.run_until_idle()
    r.clock.advance(1000.0)
    r.submit(LONG, 5)
    r.turns(1)
    assert fresh(r).status is Status.OK


def test_snapshots_are_published_when_what_runs_changes_and_else_by_time(rig: Make) -> None:
    r = rig(parallel=2)
    r.submit(PROMPT, 100)
    r.turns(3)
    first = r.engine._publisher._newest
    r.turns(5)
    assert r.engine._publisher._newest is first
    r.clock.advance(0.2)
    r.turns(1)
    second = r.engine._publisher._newest
    assert second is not first
    r.submit(PROMPT[::-1], 50)
    r.turns(1)
    assert r.engine._publisher._newest is not second
    assert r.engine.health().parallel.decoding == 2


def test_health_answers_while_a_pass_hangs(rig: Make) -> None:
    """The engine thread is held inside a chunk; its snapshots can be read all the same."""
    r = rig(parallel=2)
    inside, go_on = threading.Event(), threading.Event()

    def hold(batch: RowBatch) -> None:
        inside.set()
        assert go_on.wait(30)

    r.submit(LONG, 1)
    r.turns(1)
    r.runner.before = hold
    thread = threading.Thread(target=r.engine.turn)
    thread.start()
    try:
        assert inside.wait(30)
        for _ in range(50):
            r.clock.advance(0.5)
            lane = r.engine.health().lanes[0]
            assert (lane.state, lane.rows) == (LaneState.PREFILLING, 16)
        assert r.engine.health().snapshot_age_s == pytest.approx(25.0)
    finally:
        r.runner.before = None
        go_on.set()
        thread.join()


def test_loading_is_shown(rig: Make) -> None:
    r = rig(parallel=3)
    r.engine._progress(Loading(stage="packing weights", done_bytes=3, total_bytes=9, eta_s=1.5))
    health = r.engine.health()
    assert health.status is Status.LOADING
    assert health.loading == Loading(stage="packing weights", done_bytes=3, total_bytes=9, eta_s=1.5)
    assert (health.model, health.lanes, health.parallel.requested) == (None, [], 3)
    assert protocol.decode_health(protocol.encode(health)) == health
    # A stage may take a minute, as a compiler does: nothing is published in it, and what is said is still so.
    r.clock.advance(60.0)
    later = r.engine.health()
    assert (later.status, later.loading, later.snapshot_age_s) == (Status.LOADING, health.loading, 0.0)
    assert later.uptime_s == pytest.approx(health.uptime_s + 60.0)
