"""The engine's own pace, as it measures it: rounds by size, pauses between tokens, waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.meters import RECENT_ROUNDS, FixedHistogram, Meters, RoundMeter
from tests.support.fake_model import Rig

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]


@given(st.lists(st.floats(0, 20), max_size=60))
def test_a_histogram_counts_every_value_once_in_its_bucket(values: list[float]) -> None:
    bounds = (0.1, 1.0, 10.0)
    histogram = FixedHistogram(bounds)
    for value in values:
        histogram.observe(value)
    view = histogram.view()
    assert sum(view.counts) == len(values)
    for bound, below in zip(bounds, [sum(view.counts[: i + 1]) for i in range(3)], strict=True):
        assert below == sum(value <= bound for value in values)
    assert view.total == pytest.approx(sum(values))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=600))
def test_the_95th_percentile_is_of_the_last_rounds(millis: list[int]) -> None:
    meter = RoundMeter(2)
    for ms in millis:
        meter.ran(ms / 1000, 2)
    stat = meter.stat()
    recent = millis[-RECENT_ROUNDS:]
    assert (stat.rows, stat.rounds, stat.tokens_per_round) == (2, len(millis), 2.0)
    assert stat.ms_total == pytest.approx(sum(millis))
    assert stat.mean_ms == pytest.approx(sum(millis) / len(millis))
    at_most = sum(ms <= stat.p95_ms + 1e-6 for ms in recent)
    below = sum(ms < stat.p95_ms - 1e-6 for ms in recent)
    assert below < 0.95 * len(recent) <= at_most


def test_nothing_ran_yet() -> None:
    meters = Meters()
    assert meters.round_stats() == []
    assert meters.view().rounds == ()
    assert sum(meters.view().gaps.counts) == 0


def test_rounds_are_timed_by_the_slots_that_share_them(rig: Make) -> None:
    r = rig(parallel=2)
    r.runner.before = lambda batch: r.clock.advance(0.01 * batch.n)
    r.submit(PROMPT, 21)
    r.turns(6)
    r.submit(PROMPT[::-1], 6)
    r.run_until_idle()
    health = r.engine.health()
    assert {str(stat.rows): stat.rounds for stat in health.round_stats} == health.parallel.rounds
    alone, both = health.round_stats
    assert (alone.mean_ms, alone.p95_ms) == pytest.approx((10, 10))
    assert (both.mean_ms, both.p95_ms, both.tokens_per_round) == pytest.approx((20, 20, 2))
    # Each request's first token comes with the read of its prompt.
    assert sum(stat.rounds * stat.tokens_per_round for stat in health.round_stats) == pytest.approx(20 + 5)
    view = r.engine.meters()
    assert [(rows, sum(seen.counts)) for rows, seen in view.rounds] == [(1, alone.rounds), (2, both.rounds)]
    assert sum(view.gaps.counts) == 20 + 5
    assert sum(view.queue.counts) == 2


def test_a_lane_shows_its_wait_and_its_worst_pause(rig: Make) -> None:
    r = rig(parallel=1)
    pace = [0.01]
    r.runner.before = lambda batch: r.clock.advance(pace[0])
    r.submit(PROMPT, 5)
    r.turns(2)
    r.submit(PROMPT[::-1], 40)
    r.turns(1)
    r.clock.advance(1.0)
    r.turns(5)
    r.engine._publisher.publish(draining=False, at_once=True)
    waited = r.engine.health().lanes[0].request
    assert waited is not None
    assert waited.queue_s == pytest.approx(1.03, abs=0.02)
    pace[0] = 0.5
    r.turns(1)
    pace[0] = 0.01
    r.turns(3)
    r.engine._publisher.publish(draining=False, at_once=True)
    lane = r.engine.health().lanes[0].request
    assert lane is not None
    assert lane.worst_gap_s == pytest.approx(0.5)
