"""The line at the bottom: the views, the one that is open marked, then as many keys as fit; all from the registry."""

from __future__ import annotations

from dataclasses import dataclass

from console.keys.actions import ACTIONS, VIEW_ACTIONS, Action
from console.keys.views import VIEWS, ViewName
from console.text.spans import Line, Span, StyleRole, fit, spread, width_of
from console.viewmodel.rows import ScreenView

_GAP = 3


@dataclass(frozen=True)
class Place:
    """Where an action stands in the line: from cell `start` on, so many cells."""

    action: Action
    line: Line
    start: int

    @property
    def end(self) -> int:
        return self.start + width_of(self.line)


def places(name: ViewName, width: int) -> list[Place]:
    """What the footer of a screen `width` cells wide shows while that view is open, left to right."""
    keys = [action for action in ACTIONS if action.in_footer]
    least = width - 1 - _GAP - width_of(_words(keys[0], open_now=False))
    for gap, short in ((2, False), (1, False), (1, True)):
        shown: list[Place] = []
        start = 1
        for spec, action in zip(VIEWS, VIEW_ACTIONS, strict=True):
            here = spec.name is name
            line = (
                (Span(action.shown_key, StyleRole.BAR_BRAND),) if short and not here else _words(action, open_now=here)
            )
            shown.append(Place(action, line, start))
            start = shown[-1].end + gap
        if shown[-1].end <= least:
            break
    start = shown[-1].end + _GAP
    for action in keys:
        place = Place(action, _words(action, open_now=False), start)
        if place.end < width:
            shown.append(place)
            start = place.end + _GAP
    return shown


def action_at(name: ViewName, width: int, x: int) -> str | None:
    """The action under cell `x` of the footer."""
    return next((place.action.name for place in places(name, width) if place.start <= x < place.end), None)


def footer(view: ScreenView, width: int, name: ViewName) -> tuple[Line, ...]:
    """One line of `width` cells, the address at its right where there is room."""
    line: list[Span] = []
    used = 0
    for place in places(name, width):
        line += [Span(" " * (place.start - used), StyleRole.BAR_TEXT), *place.line]
        used = place.end
    address: Line = (Span(view.link.url, StyleRole.BAR_DIM), Span(" ", StyleRole.BAR_TEXT))
    if used + width_of(address) + _GAP > width:
        return (fit(tuple(line), width, StyleRole.BAR_TEXT),)
    return (spread(tuple(line), address, width, StyleRole.BAR_TEXT),)


def _words(action: Action, *, open_now: bool) -> Line:
    return (
        Span(action.shown_key, StyleRole.BAR_BRAND),
        Span(f" {action.label}", StyleRole.BAR_STRONG if open_now else StyleRole.BAR_TEXT),
    )
