"""One lane opened: its rate as a chart, its request's strip and the slot's last half hour, and every field."""

from __future__ import annotations

from itertools import zip_longest

from console.draw import strips
from console.draw.bars import chart, shrunk
from console.draw.frame import PanelContent
from console.history.rates import LaneTrack
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, column, fit, wrap
from console.viewmodel.rows import LaneView, ScreenView

_AXIS = 9
_CHART_ROWS = 5

Field = tuple[str, str]


def content(view: ScreenView, lane: LaneView, width: int) -> PanelContent:
    """Everything known of one slot and the request in it."""
    past = view.past.lane(lane.slot)
    body: list[Line] = [_state(lane)]
    if lane.reason and lane.busy:
        body += [(Span(f"  {text}", StyleRole.WAIT),) for text in wrap(lane.reason, width - 2)]
    body += [(), *_rate(lane, width), (), *_times(lane, past, width), ()]
    body += _fields(lane, view, width)
    summary: Line = (Span("esc", StyleRole.KEY), Span(" all lanes", StyleRole.DIM))
    return PanelContent(f"lane {lane.slot}, {lane.kind}", summary, tuple(body), strips.legend(width - 12))


def _state(lane: LaneView) -> Line:
    who: Line = (Span(f"   {lane.client} ", StyleRole.STRONG), Span(lane.request, StyleRole.DIM)) if lane.busy else ()
    return (Span(f"{lane.label.glyph} {lane.text}", lane.label.style), *who)


def _rate(lane: LaneView, width: int) -> list[Line]:
    room = max(1, width - _AXIS)
    step = strips.step_for(len(lane.rates), room)
    rates = shrunk(lane.rates, room, step)
    style = StyleRole.READ if lane.reading else StyleRole.GOOD
    lines: list[Line] = []
    for index, line in enumerate(chart(rates, room, _CHART_ROWS, style)):
        mark = figures.rate(max(rates, default=0.0)) if index == 0 else "tok/s" if index == 1 else ""
        mark = "0" if index == _CHART_ROWS - 1 else mark
        lines.append((Span(column(mark, _AXIS - 2, Align.RIGHT), StyleRole.DIM), Span("  "), *line))
    if not lane.rates:
        return lines
    note = f"the last {strips.whole_span(len(lane.rates))}, {strips.whole_span(step)} a column"
    return [*lines, (Span(column(note, width, Align.RIGHT), StyleRole.DIM),)]


def _times(lane: LaneView, past: LaneTrack, width: int) -> list[Line]:
    room = max(1, width - _AXIS)
    lines: list[Line] = []
    if lane.busy:
        step = strips.step_for(len(past.phases), room)
        lines.append((Span(column("request", _AXIS), StyleRole.DIM), *strips.strip(past.phases, room, step)))
        spent = strips.spent(strips.spent_by_request(past), room, step, words=room >= 90)
        lines += [(Span(" " * _AXIS), *spent), ()]
    step = strips.step_for(len(past.slot_phases), room)
    lines.append((Span(column("slot", _AXIS), StyleRole.DIM), *strips.recent_strip(past.slot_phases, room, step)))
    seen = f"whoever was in it, the last {strips.whole_span(len(past.slot_phases))}, {strips.whole_span(step)} a cell"
    return [*lines, (Span(column(seen, width, Align.RIGHT), StyleRole.DIM),)]


def _request(lane: LaneView) -> list[Field]:
    if not lane.busy:
        return [("request", "none")]
    return [
        ("request", lane.request),
        ("client", lane.client),
        ("age", lane.age),
        ("prompt", f"{figures.count(lane.prompt)} tok"),
        ("cached", f"{figures.count(lane.cached_tokens)} tok, {lane.cached}"),
        ("read", f"{figures.count(lane.read_done)} of {figures.count(lane.read_total)}"),
        ("written", f"{figures.count(lane.done)} of at most {figures.count(lane.limit)}"),
        ("queued", figures.span(lane.queue_s)),
        ("first token", figures.span(lane.ttft_s)),
        ("worst gap", figures.span(lane.worst_gap_s)),
        ("rate", f"{figures.rate(lane.tok_s)} tok/s" if lane.tok_s is not None else figures.NONE),
        ("a round", f"{lane.per_round} tok" if lane.per_round else figures.NONE),
    ]


def _slot(lane: LaneView, view: ScreenView) -> list[Field]:
    pages = next((slot.pages for slot in view.pool.slots if slot.slot == lane.slot), 0) if view.pool else 0
    return [
        ("slot", f"{lane.slot}, {lane.kind}"),
        ("window", f"{figures.count(lane.window)} rows"),
        ("rows", f"{figures.count(lane.rows)}, {figures.percent(lane.rows, lane.window)}"),
        ("committed", f"{figures.count(lane.committed)} rows, {figures.percent(lane.committed, lane.window)}"),
        ("ahead", f"{figures.count(max(0, lane.committed - lane.rows))} rows"),
        ("kept", f"{figures.count(lane.kept)} rows"),
        ("bytes", figures.size(lane.committed_bytes)),
        ("pages", figures.count(pages)),
    ]


def _fields(lane: LaneView, view: ScreenView, width: int) -> list[Line]:
    """Two columns where there is room for both, else one under the other."""
    request, slot = _column(_request(lane)), _column(_slot(lane, view))
    half = width // 2
    if half < 36:
        return [*request, (), *slot]
    return [(*fit(left, half), *right) for left, right in zip_longest(request, slot, fillvalue=())]


def _column(fields: list[Field]) -> list[Line]:
    return [(Span(column(name, 13), StyleRole.DIM), Span(text)) for name, text in fields]
