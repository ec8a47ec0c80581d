"""The pressure ladder: a fixed order, no rung asked beyond need, and the floor that asks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.pressure import ADMISSION_LEVELS, ALL_LEVELS, HardFloor, Level, PressureLadder, Shortfall
from tests.support.memory import ScriptedProbe, ScriptedRung

rungs_in_order = st.lists(
    st.tuples(st.sampled_from(sorted(Level)), st.lists(st.integers(1, 50), max_size=4)), max_size=8
).map(lambda made: [ScriptedRung(f"rung {i}", level, list(p)) for i, (level, p) in enumerate(sorted(made))])


@given(rungs=rungs_in_order, need=st.integers(-5, 400), levels=st.sets(st.sampled_from(sorted(Level))))
def test_order_is_kept_and_nothing_is_asked_once_enough_came_back(rungs, need, levels):
    held = {rung.name: rung.held_bytes() for rung in rungs}
    pieces = {rung.name: list(rung.pieces) for rung in rungs}
    ladder = PressureLadder(rungs)
    assert ladder.held_bytes(levels) == sum(held[r.name] for r in rungs if r.level in levels)

    freed = ladder.relieve(need, "a test asked", levels=levels)

    left = need
    for rung in rungs:
        if rung.level not in levels or left <= 0:
            assert rung.pieces == pieces[rung.name]
            assert rung.asked == []
            continue
        assert rung.asked == ([left] if held[rung.name] else [])
        left -= held[rung.name] - rung.held_bytes()
    assert freed == sum(held[r.name] - r.held_bytes() for r in rungs) == need - left or need <= 0
    assert freed >= 0
    assert freed >= need or all(r.held_bytes() == 0 for r in rungs if r.level in levels)
    assert [entry.name for entry in ladder.history] == [r.name for r in rungs if r.asked]
    assert sum(entry.freed for entry in ladder.history) == freed
    assert all(entry.asked > 0 and entry.freed >= 0 for entry in ladder.history)


def test_an_order_that_breaks_the_levels_is_refused_by_name():
    role = ScriptedRung("narrator", Level.ROLE, [])
    cache = ScriptedRung("park", Level.CACHE, [])
    with pytest.raises(ValueError, match=r"park \(CACHE\) stands after narrator \(ROLE\)"):
        PressureLadder([role, cache])


def test_a_rung_that_lies_below_zero_is_a_mistake():
    class Liar(ScriptedRung):
        def reclaim(self, need: int) -> int:
            return -1

    with pytest.raises(ValueError, match="narrator reports -1"):
        PressureLadder([Liar("narrator", Level.ROLE, [5])]).relieve(3, "a test asked")


def test_an_admission_leaves_the_caches_out():
    rungs = [ScriptedRung(level.name, level, [10]) for level in Level]
    assert PressureLadder(rungs).relieve(1000, "a test asked", levels=ADMISSION_LEVELS) == 40
    assert [rung.name for rung in rungs if rung.pieces] == ["CACHE"]
    assert {Level.CACHE} == ALL_LEVELS - ADMISSION_LEVELS


def test_history_is_bounded():
    rung = ScriptedRung("park", Level.CACHE, [1] * 10)
    ladder = PressureLadder([rung], history=3)
    for _ in range(10):
        ladder.relieve(1, "a test asked")
    assert len(ladder.history) == 3


def test_the_hard_floor_asks_for_what_is_short_and_no_more():
    probe = ScriptedProbe(available=150)
    cache = ScriptedRung("park", Level.CACHE, [20, 20, 20], probe)
    chat = ScriptedRung("slot 1", Level.SIDE_CONVERSATION, [100], probe)
    guard = HardFloor(probe, 100, PressureLadder([cache, chat]))
    assert guard.make_room(50) is None
    assert cache.asked == []
    assert guard.make_room(80) is None
    assert cache.asked == [30]
    assert chat.asked == []
    assert probe.available == 190


def test_the_hard_floor_says_what_was_left_when_nothing_more_can_be_given():
    probe = ScriptedProbe(available=110)
    guard = HardFloor(probe, 100, PressureLadder([ScriptedRung("park", Level.CACHE, [20], probe)]))
    assert guard.make_room(50) == Shortfall(need=50, available=130, floor=100, freed=20)


def test_bytes_that_do_not_show_as_free_are_asked_for_again():
    """What a rung freed may be taken by another process at once: the floor holds what the probe says, not the sum."""
    probe = ScriptedProbe(available=100)
    ghost = ScriptedRung("park", Level.CACHE, [50])
    real = ScriptedRung("slot 1", Level.SIDE_CONVERSATION, [60], probe)
    guard = HardFloor(probe, 100, PressureLadder([ghost, real]))
    assert guard.make_room(50) is None
    assert (ghost.pieces, real.pieces) == ([], [])


def test_an_old_reading_does_not_empty_the_rungs():
    """What comes back does not show in it, so what the rungs say they freed counts."""
    probe = ScriptedProbe(available=100, age_s=4.0)
    rungs = [ScriptedRung(f"slot {i}", Level.SIDE_CONVERSATION, [60]) for i in range(3)]
    guard = HardFloor(probe, 100, PressureLadder(rungs))
    assert guard.make_room(50) is None
    assert [rung.pieces for rung in rungs] == [[], [60], [60]]


@given(
    available=st.integers(0, 300),
    need=st.integers(0, 300),
    floor=st.integers(0, 200),
    pieces=st.lists(st.integers(1, 60)),
)
def test_room_is_made_exactly_where_all_there_is_makes_it(available, need, floor, pieces):
    probe = ScriptedProbe(available=available)
    guard = HardFloor(probe, floor, PressureLadder([ScriptedRung("park", Level.CACHE, list(pieces), probe)]))
    shortfall = guard.make_room(need)
    assert (shortfall is None) == (available + sum(pieces) - need >= floor)
    if shortfall is None:
        assert probe.available - need >= floor


def test_what_each_rung_gave_is_remembered_with_its_reason():
    now = [100.0]
    side = ScriptedRung("idle side conversations", Level.SIDE_CONVERSATION, [5, 5, 5])
    main = ScriptedRung("slot 0's idle conversation", Level.MAIN_CONVERSATION, [40])
    ladder = PressureLadder([side, main], clock=lambda: now[0])
    assert [(e.level, e.held_bytes, e.reclaims, e.last_age_s, e.last_reason) for e in ladder.levels(now[0])] == [
        ("idle side conversations", 15, 0, None, None),
        ("slot 0's idle conversation", 40, 0, None, None),
    ]
    ladder.relieve(7, "req-1 needed 7 B more to be admitted")
    now[0] = 130.0
    ladder.relieve(20, "pages of 20 B would have left less than the 1 KiB hard floor")
    assert [(e.held_bytes, e.reclaims, e.freed_bytes, e.last_age_s, e.last_reason) for e in ladder.levels(132.0)] == [
        (0, 2, 15, 2.0, "pages of 20 B would have left less than the 1 KiB hard floor"),
        (0, 1, 40, 2.0, "pages of 20 B would have left less than the 1 KiB hard floor"),
    ]
