"""The roles view: each small model beside the engine, what the planner makes of it, and what would make it fit."""

from __future__ import annotations

from console import figures
from console.draw import notes
from console.draw.frame import RowAt, Sheet
from console.screen import RoleView, ScreenView
from console.spans import Line, Span, parts, spread, width_of, wrap
from console.tones import Tone
from console.views import ViewState

_PLANS = {
    "load": ("the plan would load it", Tone.GOOD),
    "refuse": ("the plan would refuse it", Tone.WAIT),
    "keep": ("the plan keeps it", Tone.GOOD),
}


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """Each role in a block of lines, in the order in which they are planned."""
    if view.loading is not None:
        return Sheet("roles", body=((Span("◌ roles are planned once the model is loaded", Tone.DIM),),))
    if not view.roles:
        lines = (
            "○ no roles are planned",
            "A residency document (residency.toml) names small models to keep beside the engine.",
        )
        return Sheet("roles", body=tuple((Span(text, Tone.DIM),) for line in lines for text in wrap(line, width)))
    wanted = state.filter.casefold().strip()
    shown = [role for role in view.roles if wanted in f"{role.name} {role.kind} {role.word.word}".casefold()]
    body: list[Line] = []
    rows: list[RowAt] = []
    for role in shown:
        block = _role(role, view, width)
        rows.append(RowAt(role.id, len(body), len(block)))
        body += [*block, ()]
    if not shown:
        body = [(Span(f"○ none of {figures.plural(len(view.roles), 'role')} matches the filter", Tone.DIM),)]
    loaded = sum(role.word.word == "loaded" for role in view.roles)
    summary: Line = (Span(f"{loaded} of {figures.plural(len(view.roles), 'role')} loaded", Tone.DIM),)
    return Sheet("roles", summary, tuple(body), _foot(view), rows=tuple(rows))


def _foot(view: ScreenView) -> Line:
    if view.writes:
        return notes.keys(("l", "load"), ("u", "unload"))
    return (Span("looking only: ", Tone.DIM), Span("--write", Tone.STRONG), Span(" lets l and u act", Tone.DIM))


def _role(role: RoleView, view: ScreenView, width: int) -> list[Line]:
    name: Line = (
        Span(f"{role.word.glyph} ", role.word.tone),
        Span(role.name, Tone.STRONG),
        Span(f"  {role.word.word}", role.word.tone),
    )
    since: Line = (Span(f" for {role.since}", Tone.DIM),)
    if role.kind != role.name:
        since = (Span(f" {role.kind}", Tone.DIM), Span(" ·", Tone.FAINT), *since)
    lines = [spread(name, since if width_of(name) + width_of(since) <= width else (), width)]
    lines += [(Span(f"  {text}"),) for text in wrap(role.reason, max(1, width - 2)) if text]
    lines += _flowed(_figures(role, view), width)
    if role.to_fit is not None:
        first, *more = wrap(role.to_fit, max(1, width - 10))
        lines.append((Span("  to fit  ", Tone.WAIT), Span(first, Tone.WAIT)))
        lines += [(Span(f"          {text}", Tone.WAIT),) for text in more]
    return lines


def _figures(role: RoleView, view: ScreenView) -> list[Line]:
    """Each figure with its name; a claim says whether it was measured or declared."""
    source = f", {role.claim_source}" if role.claim_source else ""
    shown: list[Line] = [(Span("claim ", Tone.DIM), Span(f"{figures.size(role.claim_bytes)}{source}", Tone.TEXT))]
    if role.measured_bytes is not None:
        shown.append((Span("takes ", Tone.DIM), Span(f"{figures.size(role.measured_bytes)}, measured", Tone.TEXT)))
    if role.decision is not None:
        text, tone = _PLANS.get(role.decision, (f"the plan says {role.decision}", Tone.TEXT))
        shown.append((Span(text, tone),))
    if role.headroom_after is not None:
        floor = view.memory.floor if view.memory is not None else 0
        tone = Tone.BAD_STRONG if role.headroom_after < floor else Tone.TEXT
        shown.append(
            (
                Span("headroom after ", Tone.DIM),
                Span(figures.size(role.headroom_after), tone),
                Span(f" (floor {figures.size(floor)})" if floor else "", Tone.DIM),
            )
        )
    shown.append((Span("reloads ", Tone.DIM), Span(figures.count(role.reloads), Tone.TEXT)))
    return shown


def _flowed(segments: list[Line], width: int) -> list[Line]:
    """The segments side by side, on as many lines as they need."""
    lines: list[Line] = []
    left = list(segments)
    while left:
        taken = 1
        while taken < len(left) and sum(width_of(each) + 3 for each in left[: taken + 1]) - 3 <= width - 2:
            taken += 1
        lines.append((Span("  "), *parts(left[:taken], width - 2, "   ")))
        left = left[taken:]
    return lines
