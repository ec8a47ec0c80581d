"""The residency planner on the worked numbers of a real box, and what every plan must hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.memory.sizes import GIB
from engine.protocol import Health, RoleState
from engine.protocol.reports import PlanReport
from engine.roles.planner import KEEP, LOAD, REFUSE, PlanFigures, figures_of, longest_window_left, plan, planned_roles
from engine.roles.residency import Residency, RoleClaim
from tests.support import fake_health


def gib(value: float) -> int:
    return int(value * GIB)


def role(name: str, claim_gb: float, kind: str = "decider") -> RoleClaim:
    return RoleClaim(name, kind, gib(claim_gb), "measured", 1)


# A 128 GB desktop: 28.97 GiB available, the engine at 76.4 GiB of a declared peak of 84.65.
DESKTOP = PlanFigures(source="unified", available=gib(28.97), floor=gib(15), margin=gib(4), growth=gib(8.25))
SHADOW = role("shadow-reader", 6.5, "shadow")


def test_the_shadow_reader_is_refused_under_the_floor_itself():
    (decision,) = plan(DESKTOP, [SHADOW], dry_run=True).decisions
    assert decision.decision == REFUSE
    assert decision.headroom_after == 15268608737
    assert decision.reason == "not loaded, kept free for requests: would leave 14.22 GiB, under the 15 GiB floor"
    assert (
        decision.to_fit == "4.78 GiB more for floor and margin: a lower declared peak, a smaller margin, or fewer slots"
    )


def test_a_second_decider_is_refused_above_the_floor_and_under_the_margin():
    (decision,) = plan(DESKTOP, [role("decider-2", 3.0)], dry_run=True).decisions
    assert decision.decision == REFUSE
    assert decision.headroom_after == gib(28.97) - gib(8.25) - gib(3)
    assert decision.reason == (
        "not loaded, kept free for requests: would leave 17.72 GiB, above the 15 GiB floor but under 19 GiB, the "
        "floor plus the 4 GiB margin"
    )
    assert decision.to_fit is not None
    assert decision.to_fit.startswith("1.28 GiB more for floor and margin: ")


def test_the_report_carries_the_figures_it_was_made_on():
    report = plan(DESKTOP, [SHADOW], dry_run=True)
    assert report.dry_run
    assert report.memory.source == "unified"
    assert report.memory.available == 31106300641
    assert report.memory.floor == 16106127360
    assert report.memory.margin == 4294967296
    assert report.memory.engine_growth_to_come == 8858370048


def test_claims_add_up_as_roles_are_loaded_and_a_refused_one_takes_nothing():
    figures = PlanFigures("host", available=gib(20), floor=gib(5), margin=gib(2), growth=0)
    roles = [role("a", 6), role("b", 10), role("c", 5)]
    report = plan(figures, roles, dry_run=True)
    assert [(d.decision, d.headroom_after) for d in report.decisions] == [
        (LOAD, gib(14)),
        (REFUSE, gib(4)),
        (LOAD, gib(9)),
    ]
    assert report.decisions[0].reason == "fits: would leave 14 GiB, at or above the 7 GiB of floor plus margin"
    # Without growth there is no peak to lower; leaving a loaded role out is a way where that is enough.
    assert report.decisions[1].to_fit == (
        "3 GiB more for floor and margin: a smaller margin, leaving a out (6 GiB), or fewer slots"
    )


def test_a_loaded_role_is_kept_and_counted_once():
    figures = PlanFigures("host", available=gib(20), floor=gib(5), margin=gib(2), growth=0)
    report = plan(figures, [role("a", 6), role("b", 13)], loaded={"a"}, dry_run=True)
    assert [(d.decision, d.headroom_after) for d in report.decisions] == [(KEEP, gib(20)), (LOAD, gib(7))]


def test_a_claim_over_all_there_is_says_so():
    (decision,) = plan(DESKTOP, [role("big", 40)], dry_run=True).decisions
    assert "would take 19.28 GiB more than there is, and 15 GiB stays free as the floor" in decision.reason


def test_roles_in_health_say_planned_and_what_the_plan_would_do():
    figures = PlanFigures("host", available=gib(20), floor=gib(15), margin=gib(1), growth=0)
    roles = planned_roles(plan(figures, [role("decider", 3), role("b", 13)], dry_run=True), since_s=70.0)
    assert [entry.state for entry in roles] == [RoleState.PLANNED] * 2
    assert roles[0].reason == "roles do not run yet; the plan would load it"
    assert (
        roles[1].reason == "roles do not run yet; the plan would refuse it: would leave 4 GiB, under the 15 GiB floor"
    )
    assert (roles[0].claim_bytes, roles[0].measured_bytes, roles[0].since_s) == (gib(3), None, 70.0)


def with_memory(**changes: int) -> Health:
    body = fake_health.idle(0.0)
    return replace(body, memory=replace(body.memory, **changes))


def test_growth_of_a_running_engine_is_to_its_declared_peak():
    split = with_memory().memory.split
    holds = split.weights + split.kv_committed + split.caches + split.workspace
    declared = Residency((), engine_peak_bytes=holds + 1000)
    assert figures_of(with_memory(), declared, margin=5).growth == 1000
    assert figures_of(with_memory(fixed=300), declared, margin=5).growth == 1300
    assert figures_of(with_memory(peak=holds + 70), Residency(()), margin=5).growth == 70
    assert figures_of(with_memory(peak=holds - 1), Residency(()), margin=5).growth == 0


def test_growth_without_a_declared_peak_is_what_the_longest_window_may_still_commit():
    windows = ((8192, 1000000), (4096, 500), (4096, 0))
    lanes = [
        replace(fake_health.lane(slot), window=rows, committed_bytes=held) for slot, (rows, held) in enumerate(windows)
    ]
    body = fake_health.health(0.0, lanes)
    assert longest_window_left(body) == body.kv_pool.reserved_bytes // 2 - 1000000
    figures = figures_of(body, Residency(()), margin=5)
    assert figures.growth == longest_window_left(body)
    (refused,) = plan(figures, [role("big", 100)], dry_run=True).decisions
    assert refused.to_fit is not None
    assert refused.to_fit.endswith("for floor and margin: a shorter window, a smaller margin, or fewer slots")
    assert longest_window_left(fake_health.loading(0.0)) == 0


def test_the_documents_margin_wins_over_the_setting():
    assert figures_of(with_memory(), Residency(()), margin=5).margin == 5
    assert figures_of(with_memory(), Residency((), margin_bytes=0), margin=5).margin == 0


amounts = st.integers(0, 60)


@given(
    figures=st.builds(
        PlanFigures, source=st.just("host"), available=amounts, floor=amounts, margin=amounts, growth=amounts
    ),
    claims=st.lists(amounts, max_size=6),
    loaded=st.sets(st.sampled_from(["0", "1", "2"])),
)
def test_what_every_plan_holds(figures, claims, loaded):
    roles = [RoleClaim(str(i), "decider", claim, "declared", 1) for i, claim in enumerate(claims)]
    report = plan(figures, roles, loaded=loaded, dry_run=True)
    assert isinstance(report, PlanReport)
    assert [d.role for d in report.decisions] == [r.name for r in roles]
    left = figures.available - figures.growth
    for decision, wanted in zip(report.decisions, roles, strict=True):
        assert decision.reason
        assert (decision.to_fit is not None) == (decision.decision == REFUSE)
        assert (decision.decision == KEEP) == (wanted.name in loaded)
        if decision.decision == KEEP:
            assert decision.headroom_after == left
            continue
        assert decision.headroom_after == left - wanted.claim_bytes
        fits = decision.headroom_after >= figures.floor + figures.margin
        assert (decision.decision == LOAD) == fits
        if fits:
            left -= wanted.claim_bytes
