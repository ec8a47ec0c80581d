"""The line that shows where in a recording the screen stands."""

from __future__ import annotations

from datetime import datetime

from console.history.timeline import TapeView
from console.text.spans import Line, Span, StyleRole, fit, width_of

_KEYS = (("← →", "1 s"), ("⇧← ⇧→", "1 min"), ("+ -", "speed"), ("g", "time"))
_LEAST_TRACK = 10


def clock_of(when: float) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(when).strftime("%H:%M:%S")


def scrub(view: TapeView, width: int) -> Line:
    """One line of `width` cells: state and speed, the recorded time, the track with its gaps, its ends, the keys."""
    now = clock_of(view.position)
    if datetime.fromtimestamp(view.begin).date() != datetime.fromtimestamp(view.end).date():
        now = f"{datetime.fromtimestamp(view.position):%d %b} {now}"
    glyph, style = ("▶", StyleRole.BAR_GOOD) if view.playing else ("‖", StyleRole.BAR_WAIT)
    left: Line = (Span(f" {glyph} {view.speed}x ", style), Span(f" {now}  ", StyleRole.BAR_STRONG))
    grows = " ◉" if view.growing else ""
    ends: Line = (Span(f"  {clock_of(view.begin)} – {clock_of(view.end)}{grows} ", StyleRole.BAR_DIM),)
    keys: list[Span] = []
    for key, label in (("space", "pause" if view.playing else "play"), *_KEYS):
        more = [Span(f"  {key}", StyleRole.BAR_BRAND), Span(f" {label}", StyleRole.BAR_TEXT)]
        if width_of((*left, *ends, *keys, *more)) + 2 * _LEAST_TRACK > width:
            break
        keys += more
    room = width - width_of((*left, *ends, *keys))
    if room < _LEAST_TRACK:
        ends = ()
        room = width - width_of(left) - 1
    return fit((*left, *_track(view, max(0, room)), *ends, *keys), width, StyleRole.BAR_TEXT)


def _track(view: TapeView, width: int) -> Line:
    """Played, still to come, lost (×) and not recorded (·); each cell an equal share of the time."""
    if width <= 0:
        return ()
    length = max(view.end - view.begin, 1e-6)

    def cell(when: float) -> int:
        return max(0, min(width - 1, int((when - view.begin) / length * width)))

    here = cell(view.position)
    spans = [Span("━", StyleRole.BAR_GOOD) if place < here else Span("─", StyleRole.BAR_DIM) for place in range(width)]
    for gap in view.gaps:
        mark = Span("·", StyleRole.BAR_DIM) if gap.reason is None else Span("×", StyleRole.BAR_BAD)
        for place in range(cell(gap.begin), cell(gap.end) + 1):
            spans[place] = mark
    spans[here] = Span("●", StyleRole.BAR_STRONG)
    return tuple(spans)
