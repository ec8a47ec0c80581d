"""The lanes view: each slot at length, with its rate, its window and a strip of what its request did when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from console.draw import lane_detail, lanes, strips
from console.draw.bars import AHEAD, TRACK, Part, chart, progress, sparkline, stacked
from console.draw.frame import PanelContent, RowAt
from console.history.rates import LaneTrack
from console.keys.views import ViewState
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, cells, column, fit, parts, spread, width_of, wrap
from console.viewmodel.rows import LaneView, ScreenView

_NARROW = 68
# Rows a lane takes in each form, the roomiest first.
_FULL, _MIDDLE, _PAIR, _SINGLE = 6, 4, 2, 1
# Rows kept free for reasons, so that the other lanes keep their form when one starts to wait.
_SPARE = 2
_TALLEST_CURVE = 3
_LEFT = 12
# From this width on, numbers are written in full.
_WIDE = 100


@dataclass(frozen=True)
class _Form:
    """How many rows a lane takes, how many stay free under it, and how many of them are the rate's curve."""

    rows: int
    gap: int = 0
    curve: int = 1


_FORMS = (_Form(_FULL, gap=1), _Form(_FULL), _Form(_MIDDLE), _Form(_PAIR), _Form(_SINGLE))


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """Every slot in the roomiest form in which all of them show; Enter opens one."""
    shown = view.lanes
    if shown is None or view.loading is not None or not shown.lanes:
        return lanes.lanes(view, width, 1)
    opened = next((lane for lane in shown.lanes if str(lane.slot) == state.detail), None)
    if opened is not None:
        return lane_detail.content(view, opened, width)
    form = _form(len(shown.lanes), width, height)
    body: list[Line] = []
    rows: list[RowAt] = []
    for lane in shown.lanes:
        block = _block(lane, view.past.lane(lane.slot), width, form)
        rows.append(RowAt(str(lane.slot), len(body), len(block)))
        body += block
        body += [()] * form.gap
    if form.gap:
        body.pop()
    return PanelContent("lanes", lanes.summary(shown), tuple(body), strips.legend(width - 12), rows=tuple(rows))


def _form(count: int, width: int, height: int) -> _Form:
    """The roomiest form in which every lane shows, sentences apart."""
    for form in _FORMS:
        if width < _NARROW and form.rows > _PAIR:
            continue
        free = height - _SPARE - count * (form.rows + form.gap) + form.gap
        if free < 0:
            continue
        if form.rows < _FULL:
            return form
        curve = min(_TALLEST_CURVE, 1 + free // count)
        return _Form(form.rows + curve - 1, form.gap, curve)
    return _FORMS[-1]


# Cached: a lane that does not change is drawn once, not four times a second.
@lru_cache(maxsize=64)
def _block(lane: LaneView, past: LaneTrack, width: int, form: _Form) -> tuple[Line, ...]:
    """One lane's rows, its reason under the first of them."""
    # One cell is the edge that holds a lane's rows together.
    width -= 1
    if form.rows == _SINGLE:
        lines = [_single(lane, past, width)]
    elif form.rows == _PAIR:
        lines = [_head(lane, width), _pair(lane, past, width)]
    else:
        bar = _bar_width(width)
        lines = [_head(lane, width), _progress_row(lane, bar, width)]
        if form.rows >= _FULL:
            lines += _rate_rows(lane, bar, width, form.curve)
        lines += [_window_row(lane, bar, width), _time_row(lane, past, bar, width)]
        if form.rows >= _FULL:
            lines.append(_facts_row(lane, width))
    lines[1:1] = _reason(lane, width)
    edge = Span("▎", lane.label.style)
    return tuple((edge, *line) for line in lines)


def _bar_width(width: int) -> int:
    # What is left beside label, percent, figures and a fact.
    return max(10, min(96, width - _LEFT - 9 - _figures_width(width) - (36 if width >= _WIDE else 18)))


def _figures_width(width: int) -> int:
    return 20 if width >= _WIDE else 15


def _of(done: int, total: int, unit: str, width: int) -> str:
    shown = figures.count if width >= _WIDE else figures.brief
    return f"{shown(done)}/{shown(total)} {unit}"


def _reason(lane: LaneView, width: int) -> list[Line]:
    if not lane.reason or not lane.busy:
        return []
    first, *rest = wrap(lane.reason, max(10, width - 5))
    lines: list[Line] = [(Span("   ↳ ", StyleRole.WAIT), Span(first, StyleRole.WAIT))]
    return lines + [(Span(f"     {text}", StyleRole.WAIT),) for text in rest]


def _head(lane: LaneView, width: int) -> Line:
    state: Line = (
        Span(f"{lane.slot:>2} ", StyleRole.STRONG if lane.busy else StyleRole.DIM),
        Span(column(lane.kind, 5), StyleRole.DIM),
        Span(f"{lane.label.glyph} ", lane.label.style),
    )
    if not lane.busy:
        kept = f"keeps {figures.plural(lane.kept, 'row')} of its conversation" if lane.kept else "empty"
        return (*state, Span(column(lane.label.text, 12), lane.label.style), Span(kept, StyleRole.DIM))
    text = column(lane.text if cells(lane.text) <= 22 or width >= _WIDE else lane.short, 38 if width >= _WIDE else 22)
    who: Line = (Span(f"{lane.client} ", StyleRole.STRONG), Span(lane.request, StyleRole.DIM))
    age: Line = (Span(f" {lane.age}", StyleRole.TEXT), Span(" old" if width >= 80 else "", StyleRole.DIM))
    return spread((*state, Span(text, lane.label.style), Span("  "), *who), age, width)


def _label(text: str, lane: LaneView) -> Span:
    return Span("   " + column(text, _LEFT - 3), StyleRole.DIM if lane.busy else StyleRole.FAINT)


def _row(lane: LaneView, label: str, bar: Line, middle: Line, facts: list[Line], width: int) -> Line:
    """Label, bar, figures, facts, in the same columns for every lane."""
    lead: Line = (_label(label, lane), *bar, Span(" "), *middle)
    return (*lead, *parts(facts, width - width_of(lead), " · "))


def _share(done: int, total: int, unit: str, style: StyleRole, width: int) -> Line:
    percent = column(figures.percent(done, total), 6, Align.RIGHT)
    text = column(_of(done, total, unit, width), _figures_width(width))
    return (Span(f"{percent}  ", StyleRole.STRONG if style is StyleRole.TEXT else style), Span(text, style))


def task(lane: LaneView) -> tuple[str, int, int]:
    """What the progress bar counts: its label, how many are done, of how many."""
    return ("prompt", lane.read_done, lane.read_total) if lane.reading else ("answer", lane.done, lane.limit)


def time_left(lane: LaneView) -> str:
    """How long the phase may still take: a reading one will, a writing one may end sooner. Empty where unknown."""
    if lane.reading:
        return f"{figures.span(lane.left_s)} left to read" if lane.left_s is not None else ""
    left = writing_left(lane)
    return f"{figures.span(left)} left at most" if left is not None else ""


def writing_left(lane: LaneView) -> float | None:
    """Seconds until a writing lane has written all that it may, at its rate; None where it has none."""
    if lane.reading or not lane.tok_s or lane.limit <= lane.done:
        return None
    return (lane.limit - lane.done) / lane.tok_s


def _progress_row(lane: LaneView, bar: int, width: int) -> Line:
    if not lane.busy:
        return (_label("answer", lane), Span(TRACK * bar, StyleRole.TRACK))
    label, done, total = task(lane)
    style = lane.label.style if lane.reading else StyleRole.GOOD
    figure = _share(done, total, "tok", StyleRole.TEXT, width)
    left = time_left(lane)
    facts: list[Line] = [(Span(left),)] if left else []
    facts.append((Span(f"cached {lane.cached}", StyleRole.DIM),))
    return _row(lane, label, progress(done, total, bar, style), figure, facts, width)


def _rate_rows(lane: LaneView, bar: int, width: int, height: int) -> list[Line]:
    """The rate's last seconds, one a cell, with the figures beside the first row."""
    style = StyleRole.READ if lane.reading else StyleRole.GOOD
    rates = lane.rates if lane.busy else ()
    curve, *below = chart(rates, bar, height, style) if height > 1 else (sparkline(rates, bar, style),)
    rows = [(_label("", lane), *line) for line in below]
    if not lane.busy:
        return [(_label("rate", lane), *curve), *rows]
    peak = max(*lane.rates, lane.tok_s or 0.0, 0.0)
    figure: Line = (Span(" " * 8), Span(column(f"{figures.rate(lane.tok_s)} tok/s", _figures_width(width))))
    facts: list[Line] = [(Span("peak ", StyleRole.DIM), Span(figures.rate(peak)))] if peak else []
    if lane.per_round:
        facts.append((Span(lane.per_round), Span(" tok a round", StyleRole.DIM)))
    return [_row(lane, "rate", curve, figure, facts, width), *rows]


def window_bar(lane: LaneView, width: int) -> Line:
    """The slot's window: rows written (in an idle slot: kept), rows committed ahead, and the reserved rest."""
    held, style = (lane.rows, StyleRole.KV) if lane.busy else (lane.kept, StyleRole.KEPT)
    ahead = Part(max(0, lane.committed - held), StyleRole.MARGIN, AHEAD)
    return stacked((Part(held, style), ahead), lane.window, width, Part(0, StyleRole.TRACK, TRACK))


def _window_row(lane: LaneView, bar: int, width: int) -> Line:
    rows = lane.rows if lane.busy else lane.kept
    figure = _share(rows, lane.window, "rows", StyleRole.TEXT if lane.busy else StyleRole.DIM, width)
    facts: list[Line] = [
        (Span(f"{figures.count(lane.committed)} committed", StyleRole.DIM),),
        (Span(figures.size(lane.committed_bytes), StyleRole.DIM),),
    ]
    if lane.busy and lane.kept:
        facts.append((Span(f"{figures.count(lane.kept)} kept", StyleRole.DIM),))
    return _row(lane, "window", window_bar(lane, bar), figure, facts, width)


def _time_row(lane: LaneView, past: LaneTrack, bar: int, width: int) -> Line:
    """The phases of the request since its arrival; in an idle slot, the latest phases of the slot."""
    label, phases = ("timeline", past.phases) if lane.busy else ("before", past.slot_phases)
    step = strips.step_for(len(phases), bar)
    lead: Line = (_label(label, lane), *strips.strip(phases, bar, step), Span(" " * 9))
    spent = strips.spent_by_request(past) if lane.busy else strips.spent_by_slot(past)
    return (*lead, *strips.spent(spent, width - width_of(lead), step))


def _facts_row(lane: LaneView, width: int) -> Line:
    if not lane.busy:
        return ()
    facts: list[Line] = []
    if lane.queue_s is not None:
        facts.append((Span("in the queue ", StyleRole.DIM), Span(figures.span(lane.queue_s))))
    facts.append((Span("first token ", StyleRole.DIM), Span(figures.span(lane.ttft_s))))
    facts.append((Span("worst gap ", StyleRole.DIM), Span(figures.span(lane.worst_gap_s))))
    return (_label("times", lane), *parts(facts, width - _LEFT, "   "))


def _pair(lane: LaneView, past: LaneTrack, width: int) -> Line:
    """Progress, time left, window and strip side by side, for many lanes on a small screen."""
    bar = 8 if width < _NARROW else max(8, min(30, (width - 54) // 3))
    rows = lane.rows if lane.busy else lane.kept
    _, done, total = task(lane)
    style = lane.label.style if lane.reading else StyleRole.GOOD
    written: Line = ()
    if lane.busy:
        left = figures.short_span(lane.left_s if lane.reading else writing_left(lane))
        written = (
            Span("   "),
            *progress(done, total, bar, style),
            Span(f" {column(f'{figures.brief(done)}/{figures.brief(total)}', 12)}"),
            Span("left ", StyleRole.DIM),
            Span(column(left if lane.reading or left == figures.NONE else f"≤{left}", 7)),
        )
    lead: Line = (
        *fit(written, bar + 28),
        Span("win ", StyleRole.DIM),
        *(window_bar(lane, bar) if width >= _NARROW else ()),
        Span(
            column(figures.percent(rows, lane.window), 6, Align.RIGHT), StyleRole.TEXT if lane.busy else StyleRole.DIM
        ),
        Span(" "),
    )
    phases = past.phases if lane.busy else past.slot_phases
    room = max(0, width - width_of(lead))
    return (*lead, *strips.strip(phases, room, strips.step_for(len(phases), max(1, room))))


def _single(lane: LaneView, past: LaneTrack, width: int) -> Line:
    """Everything that matters most in one row; Enter shows the rest."""
    rows = lane.rows if lane.busy else lane.kept
    _, done, total = task(lane)
    counts = f"{figures.brief(done)}/{figures.brief(total)}" if lane.busy else ""
    lead: Line = (
        Span(f"{lane.slot:>2} ", StyleRole.STRONG if lane.busy else StyleRole.DIM),
        Span(f"{lane.label.glyph} ", lane.label.style),
        Span(column(lane.text if cells(lane.text) <= 19 else lane.short, 19), lane.label.style),
        Span(f" {column(counts, 10)} "),
        Span(column(figures.percent(rows, lane.window), 5, Align.RIGHT), StyleRole.DIM),
        Span(" "),
    )
    room = width - width_of(lead)
    strip = min(room, 40)
    phases = past.phases if lane.busy else past.slot_phases
    who: Line = (Span(f" {lane.client}", StyleRole.DIM),) if lane.busy and room - strip > 8 else ()
    return (*lead, *strips.strip(phases, strip, strips.step_for(len(phases), max(1, strip))), *who)
