"""A client that leaves stops its request in every phase; the others are unharmed and the books return to baseline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.protocol import LaneState
from engine.request import Done, Finished
from tests.support.fake_model import Rig, greedy

Make = Callable[..., Rig]
LONG = list(range(1, 200))
SHORT = [3, 1, 4, 1, 5]


def lane(r: Rig, slot: int) -> LaneState:
    seq = r.engine._serving().slots[slot].running
    return LaneState.IDLE if seq is None else seq.phase


def test_while_it_waits(rig: Make) -> None:
    r = rig(parallel=2)
    others = [r.submit(SHORT, 30), r.submit(SHORT[::-1], 30)]
    gone, sink = r.submit(LONG, 10)
    r.turns(3)
    r.engine.cancel(gone)
    r.run_until_idle()
    assert not sink.of(Done)
    assert all(len(LONG) != sum(p.values()) for p in r.runner.passes)
    assert sum(sum(p.values()) for p in r.runner.passes) == 2 * (len(SHORT) + 29)  # nothing was read for it
    assert [o[1].tokens() for o in others] == [greedy(SHORT, 30), greedy(SHORT[::-1], 30)]
    totals = r.engine.health().parallel.totals
    assert (totals.abandoned, totals.served) == (1, 2)


def test_before_the_engine_saw_it(rig: Make) -> None:
    r = rig(parallel=1)
    gone, sink = r.submit(SHORT, 10)
    r.engine.cancel(gone)
    r.run_until_idle()
    assert sink.events == []
    assert r.runner.passes == []


@pytest.mark.parametrize("stream", [True, False])
def test_while_its_prompt_is_read(rig: Make, stream: bool) -> None:
    r = rig(parallel=2)
    _, other = r.submit(SHORT, 60)
    gone, sink = r.submit(LONG, 10, stream=stream)
    r.turns(4)
    assert lane(r, 1) is LaneState.PREFILLING
    rows = r.engine._serving().slots[1].state.rows
    assert 0 < rows < len(LONG)
    r.engine.cancel(gone)
    r.engine.turn()
    assert lane(r, 1) is LaneState.IDLE
    assert r.engine._serving().slots[1].state.rows == rows
    r.run_until_idle()
    assert other.tokens() == greedy(SHORT, 60)
    assert not sink.of(Finished)


def test_while_its_read_gives_way(rig: Make) -> None:
    r = rig(parallel=2)
    gone, _ = r.submit(LONG, 10)
    r.turns(2)
    _, short = r.submit(list(range(50, 90)), 10)
    r.turns(1)
    assert lane(r, 0) is LaneState.YIELDED
    r.engine.cancel(gone)
    r.engine.turn()
    assert lane(r, 0) is LaneState.IDLE
    r.run_until_idle()
    assert short.tokens() == greedy(list(range(50, 90)), 10)


def test_while_it_decodes(rig: Make) -> None:
    r = rig(parallel=2)
    gone, sink = r.submit(SHORT, 100)
    _, other = r.submit(SHORT[::-1], 40)
    r.turns(10)
    assert lane(r, 0) is LaneState.DECODING
    sent = len(sink.events)
    r.engine.cancel(gone)
    r.engine.turn()
    assert lane(r, 0) is LaneState.IDLE
    assert len(sink.events) == sent
    r.run_until_idle()
    assert other.tokens() == greedy(SHORT[::-1], 40)


def test_every_choice_stops(rig: Make) -> None:
    r = rig(parallel=3)
    gone, sink = r.submit(SHORT, 200, n=2, stream=True)
    r.turns(20)
    assert lane(r, 0) is lane(r, 1) is LaneState.DECODING
    r.engine.cancel(gone)
    r.engine.turn()
    assert lane(r, 0) is lane(r, 1) is LaneState.IDLE
    assert r.engine.health().parallel.totals.abandoned == 1
    assert not sink.of(Done)


def test_with_choices_still_to_come(rig: Make) -> None:
    r = rig(parallel=1)
    gone, _ = r.submit(SHORT, 200, n=3)
    r.turns(5)
    r.engine.cancel(gone)
    r.engine.turn()
    assert not r.engine._serving().requests


def test_unknown_and_repeated_ids_are_ignored(rig: Make) -> None:
    r = rig(parallel=1)
    gone, _ = r.submit(SHORT, 50)
    r.turns(2)
    for name in ("nobody", gone, gone, "nobody"):
        r.engine.cancel(name)
    r.run_until_idle()
    assert r.engine.health().parallel.totals.abandoned == 1


def test_a_client_that_comes_again_finds_what_was_read(rig: Make) -> None:
    r = rig(parallel=1)
    gone, _ = r.submit(LONG, 5, first_user_end=20)
    r.turns(5)
    r.engine.cancel(gone)
    _, sink = r.submit(LONG, 5, first_user_end=20)
    r.run_until_idle()
    assert sink.tokens() == greedy(LONG, 5)
    assert sink.of(Done)[0].cached_tokens == 80
