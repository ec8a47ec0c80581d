"""Timeline strips: one row over time whose glyphs say what a lane did, with the legend and the seconds by phase."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from console.history.phases import Phase, dominant, seconds_by_phase
from console.history.rates import LaneTrack
from console.text import figures
from console.text.spans import Line, Span, StyleRole, parts, width_of
from console.viewmodel.labels import PHASE_LABELS

# Seconds that one cell may stand for: round numbers.
_STEPS = (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300)
# The most important first: a narrow screen leaves out the last ones.
_LEGEND = (Phase.READING, Phase.WRITING, Phase.YIELDED, Phase.WAITING, Phase.IDLE, Phase.RESTORING, Phase.FINISHING)


def step_for(seconds: int, width: int) -> int:
    """The smallest round number of seconds a cell with which `seconds` fit into `width` cells."""
    return next((step for step in _STEPS if -(-seconds // step) <= width), _STEPS[-1])


def strip(phases: Sequence[Phase], width: int, step: int) -> Line:
    """The phases from the left, `step` seconds a cell; each cell shows what took most of it."""
    starts = range(0, min(len(phases), width * step), step)
    cells = phases[:width] if step == 1 else [dominant(phases[at : at + step]) for at in starts]
    spans = []
    for phase, run in groupby(cells):
        sign = PHASE_LABELS[phase]
        spans.append(Span(sign.glyph * len(list(run)), sign.style))
    if len(cells) < width:
        spans.append(Span(" " * (width - len(cells))))
    return tuple(spans)


def recent_strip(phases: Sequence[Phase], width: int, step: int) -> Line:
    """The latest phases with the newest at the right edge."""
    shown = list(phases[-width * step :])
    missing = width * step - len(shown)
    return strip([Phase.UNSEEN] * missing + shown, width, step)


def legend(width: int) -> Line:
    """What the glyphs of a strip stand for, as many as fit, in the order in which a request goes through them."""
    entries: dict[Phase, Line] = {}
    for phase in _LEGEND:
        sign = PHASE_LABELS[phase]
        entry: Line = (Span(sign.glyph, sign.style), Span(f" {sign.text}", StyleRole.DIM))
        width -= width_of(entry) + 2
        if width < -2:
            break
        entries[phase] = entry
    return parts([entries[phase] for phase in Phase if phase in entries], 1 << 10)


def spent_by_request(past: LaneTrack) -> list[tuple[Phase, str]]:
    """How long a request was in each phase; what would show as nothing is left out."""
    return [(phase, figures.span(seconds)) for phase, seconds in past.spent if seconds >= 0.005]


def spent_by_slot(past: LaneTrack) -> list[tuple[Phase, str]]:
    """How long a slot was in each phase, counted in its strip's seconds."""
    return [(phase, whole_span(seconds)) for phase, seconds in seconds_by_phase(past.slot_phases).items()]


def spent(phases: Sequence[tuple[Phase, str]], width: int, step: int, *, words: bool = False) -> Line:
    """How long each phase took: `┈ 2.1 s  ═ 8.0 s  ━ 24 s`, with the words of the legend where there is room; then how
    long a cell of the strip is."""
    entries: list[Line] = []
    for phase, seconds in phases:
        sign = PHASE_LABELS[phase]
        name = f"{sign.glyph} {sign.text} " if words else f"{sign.glyph} "
        if phase is Phase.UNSEEN:
            name = f"{sign.text} "
        entries.append((Span(name, sign.style), Span(seconds)))
    return parts([*entries, (Span(f"{whole_span(step)} a cell", StyleRole.FAINT),)], width)


def whole_span(seconds: int) -> str:
    """A duration counted in whole seconds: `7 s`, `1 m 05 s`."""
    return f"{seconds} s" if seconds < 60 else figures.span(seconds)
