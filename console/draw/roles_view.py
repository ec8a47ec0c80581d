"""The roles view: each small model beside the engine, what the planner makes of it, and what would make it fit."""

from __future__ import annotations

from console.draw import notes
from console.draw.bars import AHEAD, FILL, Part, stacked
from console.draw.frame import PanelContent, RowAt
from console.keys.views import ViewState
from console.text import figures
from console.text.spans import Line, Span, StyleRole, column, parts, spread, width_of, wrap
from console.viewmodel.rows import RoleView, ScreenView

_CLAIM = "▣"
_PLANS = {
    "load": ("the plan would load it", StyleRole.GOOD),
    "refuse": ("the plan would refuse it", StyleRole.WAIT),
    "keep": ("the plan keeps it", StyleRole.GOOD),
}


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """Each role in a block of lines, in the order in which they are planned."""
    if view.loading is not None:
        return PanelContent("roles", body=((Span("◌ roles are planned once the model is loaded", StyleRole.DIM),),))
    if not view.roles:
        lines = (
            "○ no roles are planned",
            "A residency document (residency.toml) names small models to keep beside the engine.",
        )
        return PanelContent(
            "roles", body=tuple((Span(text, StyleRole.DIM),) for line in lines for text in wrap(line, width))
        )
    wanted = state.filter.casefold().strip()
    shown = [role for role in view.roles if wanted in f"{role.name} {role.kind} {role.label.text}".casefold()]
    body: list[Line] = []
    rows: list[RowAt] = []
    for role in shown:
        block = _role(role, view, width)
        rows.append(RowAt(role.id, len(body), len(block)))
        body += [*block, ()]
    body = body[:-1]
    if not shown:
        body = [(Span(f"○ none of {figures.plural(len(view.roles), 'role')} matches the filter", StyleRole.DIM),)]
    loaded = sum(role.label.text == "loaded" for role in view.roles)
    summary: Line = (Span(f"{loaded} of {figures.plural(len(view.roles), 'role')} loaded", StyleRole.DIM),)
    return PanelContent("roles", summary, tuple(body), _foot(view), head=_legend(view, width), rows=tuple(rows))


def _legend(view: ScreenView, width: int) -> tuple[Line, ...]:
    """The legend of the bars."""
    signs: list[Line] = [
        (Span(f"{_CLAIM} ", StyleRole.ROLES), Span("its claim", StyleRole.DIM)),
        (Span(f"{FILL} ", StyleRole.GOOD), Span("left for requests", StyleRole.DIM)),
        (Span(f"{AHEAD} ", StyleRole.WAIT), Span(f"the floor, {figures.size(_floor(view))}", StyleRole.DIM)),
    ]
    return (parts(signs, width),)


def _foot(view: ScreenView) -> Line:
    if view.writes:
        return notes.keys(("l", "load"), ("u", "unload"))
    return (
        Span("looking only: ", StyleRole.DIM),
        Span("--write", StyleRole.STRONG),
        Span(" lets l and u act", StyleRole.DIM),
    )


def _role(role: RoleView, view: ScreenView, width: int) -> list[Line]:
    name: Line = (
        Span(f"{role.label.glyph} ", role.label.style),
        Span(role.name, StyleRole.STRONG),
        Span(f"  {role.label.text}", role.label.style),
    )
    since: Line = (Span(f" for {role.since}", StyleRole.DIM),)
    if role.kind != role.name:
        since = (Span(f" {role.kind}", StyleRole.DIM), Span(" ·", StyleRole.FAINT), *since)
    lines = [spread(name, since if width_of(name) + width_of(since) <= width else (), width)]
    lines += [(Span(f"  {text}"),) for text in wrap(role.reason, max(1, width - 2)) if text]
    lines += [(Span("  "), *line) for line in notes.flowed(_figures(role, view), max(1, width - 2))]
    lines += _bar(role, view, max(1, width - 2))
    if role.to_fit is not None:
        first, *more = wrap(role.to_fit, max(1, width - 10))
        lines.append((Span("  to fit  ", StyleRole.WAIT), Span(first, StyleRole.WAIT)))
        lines += [(Span(f"          {text}", StyleRole.WAIT),) for text in more]
    return lines


def _figures(role: RoleView, view: ScreenView) -> list[Line]:
    """Each figure with its name, in columns that stand under one another; a claim says how it is known."""
    claim = f"{figures.size(role.claim_bytes)} {role.claim_source}".strip()
    shown: list[Line] = [(Span("claim ", StyleRole.DIM), Span(column(claim, 18)))]
    takes = figures.size(role.measured_bytes)
    shown.append(
        (
            Span("takes ", StyleRole.DIM),
            Span(column(takes, 9), StyleRole.TEXT if role.measured_bytes else StyleRole.DIM),
        )
    )
    if role.headroom_after is not None:
        style = StyleRole.BAD_STRONG if role.headroom_after < _floor(view) else StyleRole.TEXT
        shown.append(
            (Span("headroom after ", StyleRole.DIM), Span(column(figures.size(role.headroom_after), 9), style))
        )
    shown.append((Span("reloads ", StyleRole.DIM), Span(column(figures.count(role.reloads), 3))))
    if role.decision is not None:
        text, style = _PLANS.get(role.decision, (f"the plan says {role.decision}", StyleRole.TEXT))
        if text not in role.reason:
            shown.append((Span(text, style),))
    return shown


def _bar(role: RoleView, view: ScreenView, width: int) -> list[Line]:
    """What the plan shares out: the role's claim, and what would be left for requests, the floor last."""
    after = role.headroom_after
    if after is None:
        return []
    # The plan does not allot memory to a role that is loaded already.
    claim = 0 if role.decision == "keep" else role.claim_bytes
    floor = min(_floor(view), max(0, after))
    above = max(0, after - floor)
    shared = (Part(claim, StyleRole.ROLES, _CLAIM), Part(above, StyleRole.GOOD))
    bar = stacked(shared, claim + max(0, after), min(60, width), Part(floor, StyleRole.WAIT, AHEAD))
    return [(Span("  "), *bar)]


def _floor(view: ScreenView) -> int:
    return view.memory.floor if view.memory is not None else 0
