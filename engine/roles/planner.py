"""The residency planner: which small models fit beside the engine, which do not, and what would make them fit. Pure.

Roles are planned one by one in their order. Loading one leaves

    headroom_after = available - growth still to come of the engine - its claim - claims loaded before it

and it loads where that is at least floor + margin. Growth still to come is counted once, here: a request alone is
admitted above the hard floor only, so what it may still take is kept free by the plan and by nothing else.

    figures = PlanFigures(source, available, floor, margin, growth)      # or figures_of(health, residency, margin)
    report = plan(figures, residency.roles, loaded=(), dry_run=True)
    roles = planned_roles(report, since_s=uptime)                        # for `/health`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.memory.sizes import size
from engine.protocol import Health, Role, RoleState
from engine.protocol.reports import PlanDecision, PlanMemory, PlanReport
from engine.roles.residency import Residency, RoleClaim

NOT_BUILT = "roles do not run yet"
LOWER_PEAK = "a lower declared peak"
SHORTER_WINDOW = "a shorter window"
LOAD, REFUSE, KEEP = "load", "refuse", "keep"


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What a plan is made on, in bytes: memory `available` now, the `floor` that admission keeps, the `margin` that
    roles leave above it, and the engine's `growth` still to come, with the words for what makes that smaller."""

    source: str
    available: int
    floor: int
    margin: int
    growth: int
    less_growth: str = LOWER_PEAK


def plan(
    figures: PlanFigures, roles: Sequence[RoleClaim], *, loaded: Collection[str] = (), dry_run: bool
) -> PlanReport:
    """Decide on every role, in the order given. `loaded` names those that run already: their memory is no longer in
    `available`, so they are kept and counted once."""
    headroom = figures.available - figures.growth
    decisions: list[PlanDecision] = []
    taken: list[RoleClaim] = []
    for role in roles:
        after = headroom if role.name in loaded else headroom - role.claim_bytes
        to_fit: str | None = None
        if role.name in loaded:
            decision = KEEP
            reason = f"kept, it is loaded: its memory is counted, and {_left(after)} stays for requests"
        elif after >= figures.floor + figures.margin:
            decision = LOAD
            kept = size(figures.floor + figures.margin)
            reason = f"fits: would leave {size(after)}, at or above the {kept} of floor plus margin"
            headroom = after
            taken.append(role)
        else:
            decision = REFUSE
            reason = f"not loaded, kept free for requests: {_why(after, figures)}"
            to_fit = _to_fit(after, figures, taken)
        decisions.append(
            PlanDecision(
                role=role.name,
                kind=role.kind,
                decision=decision,
                claim_bytes=role.claim_bytes,
                claim_source=role.claim_source,
                headroom_after=after,
                reason=reason,
                to_fit=to_fit,
            )
        )
    memory = PlanMemory(
        source=figures.source,
        available=figures.available,
        floor=figures.floor,
        margin=figures.margin,
        engine_growth_to_come=figures.growth,
    )
    return PlanReport(dry_run=dry_run, memory=memory, decisions=decisions)


def figures_of(health: Health, residency: Residency, margin: int) -> PlanFigures:
    """The figures of a running engine. `margin` (bytes) holds where the document names none."""
    memory = health.memory
    # What the slots took for good at start comes on top of the peak that the document declares for the engine alone.
    declared = residency.engine_peak_bytes
    peak = memory.peak if declared is None else declared + memory.fixed
    split = memory.split
    holds = (
        split.weights
        + split.kv_committed
        + split.caches
        + split.state
        + split.graphs
        + split.workspace
        + split.allocator_free
    )
    return PlanFigures(
        source=memory.source,
        available=memory.available,
        floor=memory.floor,
        margin=margin if residency.margin_bytes is None else residency.margin_bytes,
        growth=growth_to_come(declared_peak=peak, holds=holds, longest_window=longest_window_left(health)),
        less_growth=SHORTER_WINDOW if peak is None else LOWER_PEAK,
    )


def growth_to_come(*, declared_peak: int | None, holds: int, longest_window: int) -> int:
    """Bytes that the engine may still take: up to its declared peak from what it `holds`, else the KV that one
    request in the `longest_window` may still commit."""
    if declared_peak is None:
        return longest_window
    return max(0, declared_peak - holds)


def longest_window_left(health: Health) -> int:
    """Bytes of KV that the slot with the longest window may still commit."""
    windows = sum(lane.window for lane in health.lanes)
    if not windows:
        return 0
    longest = max(health.lanes, key=lambda lane: lane.window)
    return max(0, health.kv_pool.reserved_bytes * longest.window // windows - longest.committed_bytes)


def planned_roles(report: PlanReport, *, since_s: float) -> list[Role]:
    """The roles as `/health` shows them while none can run: what the plan would do with each. `since_s` is the age of
    the plan in seconds."""
    return [
        Role(
            name=decision.role,
            kind=decision.kind,
            state=RoleState.PLANNED,
            claim_bytes=decision.claim_bytes,
            measured_bytes=None,
            reason=(
                f"{NOT_BUILT}; the plan would load it"
                if decision.decision != REFUSE
                else f"{NOT_BUILT}; the plan would refuse it: {decision.reason.partition(': ')[2]}"
            ),
            since_s=since_s,
            reloads=0,
            decision=decision.decision,
            headroom_after=decision.headroom_after,
            to_fit=decision.to_fit,
            claim_source=decision.claim_source,
        )
        for decision in report.decisions
    ]


def _left(after: int) -> str:
    return size(after) if after >= 0 else f"{size(-after)} less than nothing"


def _why(after: int, figures: PlanFigures) -> str:
    floor, margin = size(figures.floor), size(figures.margin)
    both = size(figures.floor + figures.margin)
    if after < 0:
        return f"would take {size(-after)} more than there is, and {floor} stays free as the floor"
    if after < figures.floor:
        return f"would leave {size(after)}, under the {floor} floor"
    return f"would leave {size(after)}, above the {floor} floor but under {both}, the floor plus the {margin} margin"


def _to_fit(after: int, figures: PlanFigures, taken: Sequence[RoleClaim]) -> str:
    short = figures.floor + figures.margin - after
    ways: list[str] = []
    if figures.growth > 0:
        ways.append(figures.less_growth)
    if figures.margin > 0:
        ways.append("a smaller margin")
    smallest = min((role for role in taken if role.claim_bytes >= short), key=lambda r: r.claim_bytes, default=None)
    if smallest is not None:
        ways.append(f"leaving {smallest.name} out ({size(smallest.claim_bytes)})")
    ways.append("fewer slots")
    listed = f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]
    return f"{size(short)} more for floor and margin: {listed}"
