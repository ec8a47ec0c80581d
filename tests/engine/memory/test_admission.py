"""Admission as histories: who runs, who waits with which words, who is refused, and that the books are credited."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.admission import (
    AdmissionView,
    Admit,
    Reclaim,
    Refuse,
    Reservations,
    WaitForMemory,
    admit,
    admit_with_reclaim,
)
from engine.memory.pressure import Level, PressureLadder
from engine.memory.sizes import GIB
from tests.support.memory import ScriptedProbe, ScriptedRung

QUIET = AdmissionView(
    need=3 * GIB,
    available=20 * GIB,
    floor=6 * GIB,
    hard_floor=4 * GIB,
    running=0,
    outstanding=0,
    held_by_running=0,
    idle=0,
    caches=0,
)


@pytest.mark.parametrize(
    ("what", "changes", "expected"),
    [
        ("alone, plenty", {}, Admit),
        ("alone, under the floor, above the hard floor", {"available": 7 * GIB}, Admit),
        ("alone, one byte under the hard floor", {"available": 7 * GIB - 1}, Refuse),
        ("alone, fits once the caches go", {"available": 5 * GIB, "caches": 2 * GIB}, Admit),
        ("alone, fits once idle conversations go", {"available": 5 * GIB, "idle": 2 * GIB}, Admit),
        ("joint, exactly at the floor", {"available": 9 * GIB, "running": 1}, Admit),
        ("joint, one byte under it", {"available": 9 * GIB - 1, "running": 1}, WaitForMemory),
        (
            "joint, the others' promises count",
            {"available": 12 * GIB, "running": 2, "outstanding": 4 * GIB},
            WaitForMemory,
        ),
        ("joint, idle holders give back first", {"available": 8 * GIB, "running": 1, "idle": 5 * GIB}, Reclaim),
        (
            "joint, caches do not make room before a wait",
            {"available": 8 * GIB, "running": 1, "caches": 5 * GIB},
            WaitForMemory,
        ),
        (
            "joint, too large for the whole box",
            {"available": 5 * GIB, "running": 1, "held_by_running": GIB},
            Refuse,
        ),
        (
            "joint, runs alone later",
            {"available": 5 * GIB, "running": 1, "held_by_running": 2 * GIB},
            WaitForMemory,
        ),
    ],
)
def test_decisions(what, changes, expected):
    assert isinstance(admit(replace(QUIET, **changes)), expected), what


def test_a_wait_says_the_numbers():
    decision = admit(replace(QUIET, available=10 * GIB, running=2, outstanding=3 * GIB))
    assert isinstance(decision, WaitForMemory)
    assert decision.reason == (
        "memory is almost full, this request may take 3 GiB and 1 GiB is free for it: 10 GiB available, "
        "3 GiB promised to 2 running requests, 6 GiB kept as the floor"
    )


def test_a_refusal_says_what_it_needs_what_there_is_and_what_to_change():
    decision = admit(replace(QUIET, available=6 * GIB))
    assert isinstance(decision, Refuse)
    assert (decision.figures.need, decision.figures.available) == (3 * GIB, 6 * GIB)
    assert decision.figures.hard_floor == 4 * GIB
    for word in ("3 GiB of KV", "6 GiB", "4 GiB", "TANDEM_KV_HARD_FLOOR_GB"):
        assert word in decision.reason


def test_only_what_is_short_is_reclaimed():
    assert admit(replace(QUIET, available=8 * GIB, running=1, idle=5 * GIB)) == Reclaim(GIB)
    assert admit(replace(QUIET, available=8 * GIB, running=1, idle=GIB // 2)) == Reclaim(GIB // 2)


def test_idle_conversations_and_roles_go_before_a_wait_and_caches_stay():
    probe = ScriptedProbe(available=8 * GIB)
    cache = ScriptedRung("park", Level.CACHE, [4 * GIB], probe)
    role = ScriptedRung("narrator", Level.ROLE, [GIB // 2], probe)
    chat = ScriptedRung("slot 1", Level.SIDE_CONVERSATION, [GIB, GIB], probe)
    view = replace(QUIET, available=8 * GIB, running=1, idle=5 * GIB // 2, caches=4 * GIB)
    decision = admit_with_reclaim(view, PressureLadder([cache, role, chat]), lambda: probe.available)
    assert decision == Admit(QUIET.need)
    assert (cache.held_bytes(), role.held_bytes(), chat.held_bytes()) == (4 * GIB, 0, GIB)


def test_a_holder_that_gives_nothing_ends_in_a_wait_not_in_a_loop():
    class Stuck(ScriptedRung):
        def reclaim(self, need: int) -> int:
            self.asked.append(need)
            return 0

    stuck = Stuck("slot 1", Level.SIDE_CONVERSATION, [5 * GIB])
    view = replace(QUIET, available=8 * GIB, running=1, idle=5 * GIB)
    assert isinstance(admit_with_reclaim(view, PressureLadder([stuck]), lambda: 8 * GIB), WaitForMemory)
    assert len(stuck.asked) == 1


def test_a_pool_for_one_and_a_half_runs_two_long_requests_one_after_the_other():
    """Two start together; one runs, the other waits with its reason, then runs alone. Pages are credited as taken."""
    need = 10
    box, floor = 15 + 6, 6
    ledger = Reservations()
    taken = {0: 0, 1: 0}

    def view(slot: int) -> AdmissionView:
        running = sum(1 for other in taken if other != slot and ledger.of(other) + taken[other] > 0)
        return AdmissionView(
            need=need,
            available=box - sum(taken.values()),
            floor=floor,
            hard_floor=4,
            running=running,
            outstanding=ledger.outstanding(),
            held_by_running=sum(taken.values()),
            idle=0,
            caches=0,
        )

    assert isinstance(admit(view(0)), Admit)
    ledger.reserve(0, need)
    assert isinstance(admit(view(1)), WaitForMemory)
    for _ in range(10):
        taken[0] += 1
        ledger.credit(0, 1)
        # A page taken leaves `available` and the promise together: the answer does not drift while slot 0 writes.
        assert isinstance(admit(view(1)), WaitForMemory)
    assert ledger.outstanding() == 0
    taken[0] = 0
    ledger.release(0)
    assert isinstance(admit(view(1)), Admit)


def test_reservations_are_credited_as_pages_come_and_forgotten_at_the_end():
    reservations = Reservations()
    reservations.reserve(0, 10)
    reservations.reserve(1, 7)
    assert reservations.outstanding() == 17
    reservations.credit(0, 4)
    assert reservations.of(0) == 6
    reservations.credit(0, 100)
    assert reservations.of(0) == 0
    reservations.credit(3, 9)
    reservations.release(3)
    assert reservations.outstanding() == 7
    with pytest.raises(ValueError, match="slot 1 already has a reservation of 7 bytes"):
        reservations.reserve(1, 1)
    reservations.release(1)
    reservations.reserve(1, -6)
    assert reservations.outstanding() == 0


amounts = st.integers(0, 100)


@given(
    st.builds(
        AdmissionView,
        need=amounts,
        available=amounts,
        floor=amounts,
        hard_floor=amounts,
        running=st.integers(0, 3),
        outstanding=amounts,
        held_by_running=amounts,
        idle=amounts,
        caches=amounts,
    )
)
def test_what_every_decision_promises(view):
    decision = admit(view)
    need = view.need
    if isinstance(decision, Admit) and view.running:
        assert view.available - view.outstanding - need >= view.floor
    if view.running == 0:
        assert isinstance(decision, Admit | Refuse)
    if isinstance(decision, Refuse):
        everything = view.available + view.held_by_running + view.idle + view.caches
        assert everything - need < view.hard_floor
    if isinstance(decision, Reclaim):
        assert 0 < decision.need <= view.idle
    if isinstance(decision, WaitForMemory):
        assert view.idle == 0
        # It can run once the others are gone: nothing waits for what never comes.
        alone = replace(view, running=0, outstanding=0, available=view.available + view.held_by_running)
        assert isinstance(admit(replace(alone, held_by_running=0)), Admit)
