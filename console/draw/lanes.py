"""The lanes: one block a slot, in one, two or three rows, and a reason row where a request does not move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from console.draw.bars import AHEAD, TRACK, Part, progress, sparkline, stacked
from console.draw.frame import PanelContent
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, cells, column, parts, spread, wrap
from console.viewmodel.rows import LanesView, LaneView, ScreenView

_MARGIN_LEFT = 8


@dataclass(frozen=True)
class _Columns:
    """Widths that keep every lane's figures under one another."""

    text: int
    bar: int

    @property
    def curve(self) -> int:
        # Ends where the figures under it begin, so that the client stands over the token counts.
        return self.bar + 12 - self.text


def _columns(width: int) -> _Columns:
    if width >= 150:
        return _Columns(text=34, bar=60)
    if width >= 104:
        return _Columns(text=26, bar=38)
    if width >= 90:
        return _Columns(text=22, bar=28)
    return _Columns(text=22, bar=20)


def lanes(view: ScreenView, width: int, form: int) -> PanelContent:
    """The lanes in `width` cells, each in `form` rows; before there are any, why not."""
    shown = view.lanes
    if shown is None:
        return PanelContent("lanes", body=nobody(view, width))
    if view.loading is not None or not shown.lanes:
        instead = _loading(view, width) if view.loading is not None else _no_match(shown)
        return PanelContent("lanes", summary=summary(shown), body=instead)
    body: list[Line] = []
    for lane in shown.lanes:
        body.extend(block(lane, width, form))
    return PanelContent("lanes", summary(shown), tuple(body), _rounds(shown))


def summary(shown: LanesView) -> Line:
    line: list[Span] = []
    if shown.filter_text:
        line += [Span(f"only “{shown.filter_text}”, {len(shown.lanes)} of {shown.slots}", StyleRole.WAIT), Span(" · ")]
    if shown.note:
        line += [Span(shown.note, StyleRole.WAIT), Span(" · ", StyleRole.DIM)]
    line.append(Span(f"{shown.busy} of {figures.plural(shown.slots, 'slot')} busy", StyleRole.DIM))
    return tuple(line)


def _rounds(shown: LanesView) -> Line:
    """How many rounds ran with so many slots together."""
    seen = [
        (Span(slots, StyleRole.TEXT), Span(f"×{figures.count(number)}", StyleRole.DIM))
        for slots, number in shown.rounds
    ]
    if not seen:
        return ()
    return (Span("rounds by slots  ", StyleRole.DIM), *parts(seen, 48))


def _no_match(shown: LanesView) -> tuple[Line, ...]:
    if shown.filter_text:
        return ((Span(f"no lane matches “{shown.filter_text}”", StyleRole.DIM),),)
    return ((Span("no slots yet", StyleRole.DIM),),)


def nobody(view: ScreenView, width: int) -> tuple[Line, ...]:
    """What stands in place of a panel while no snapshot came: whom one asks, and why nothing answers."""
    link = view.link
    if link.error is None:
        return ((), (Span("◌ ", StyleRole.READ_STRONG), Span(f"asking {link.url} …", StyleRole.TEXT)))
    lines: list[Line] = [
        (),
        (
            Span("✖ ", StyleRole.BAD_STRONG),
            Span("nothing answers at ", StyleRole.TEXT),
            Span(link.url, StyleRole.STRONG),
        ),
    ]
    lines += [(Span(f"  {text}", StyleRole.DIM),) for text in wrap(view.header.freshness, width - 2)]
    lines += [
        (),
        (
            Span("  start an engine with ", StyleRole.DIM),
            Span("tandem serve", StyleRole.STRONG),
            Span("; trying again by itself", StyleRole.DIM),
        ),
    ]
    return tuple(lines)


def _loading(view: ScreenView, width: int) -> tuple[Line, ...]:
    loading = view.loading
    if loading is None:
        return ()
    stage: tuple[Line, ...] = ((), (Span("◌ Loading  ", StyleRole.READ_STRONG), Span(loading.stage, StyleRole.TEXT)))
    if not loading.total:
        return stage
    done = f"{figures.size(loading.done)} of {figures.size(loading.total)}"
    left = f"   left {loading.left}" if loading.left else ""
    bar = progress(loading.done, loading.total, min(60, max(10, width - 48)), StyleRole.READ)
    return (
        *stage,
        (),
        (
            *bar,
            Span(f"  {column(figures.percent(loading.done, loading.total), 6, Align.RIGHT)}", StyleRole.STRONG),
            Span(f"   {done}{left}", StyleRole.DIM),
        ),
    )


# A lane that stands still is drawn once, not four times a second.
@lru_cache(maxsize=64)
def block(lane: LaneView, width: int, form: int) -> tuple[Line, ...]:
    """One lane's rows, its reason under them."""
    columns = _columns(width)
    # One cell is the edge that holds a lane's rows together.
    width -= 1
    if form == 1:
        rows = [_one_row(lane, width)]
    elif form == 2:
        rows = [_head(lane, width, columns), _both_bars(lane, width)]
    else:
        rows = [_head(lane, width, columns), _progress_row(lane, width, columns), _window_row(lane, width, columns)]
    edge = Span("▎", lane.label.style)
    if lane.reason and lane.busy:
        lead = Span(" " * (_MARGIN_LEFT if form > 1 else 3) + "↳ ", StyleRole.WAIT)
        wrapped = wrap(lane.reason, max(10, width - len(lead.text)))
        rows.append((lead, Span(wrapped[0], StyleRole.WAIT)))
        rows += [(Span(" " * len(lead.text)), Span(text, StyleRole.WAIT)) for text in wrapped[1:]]
    return tuple((edge, *row) for row in rows)


def _name(lane: LaneView) -> Line:
    return (
        Span(f"{lane.slot:>2} ", StyleRole.STRONG if lane.busy else StyleRole.DIM),
        Span(column(lane.kind, 5), StyleRole.DIM),
    )


def _phase(lane: LaneView, width: int) -> str:
    return column(lane.text if cells(lane.text) <= width else lane.short, width)


def _curve(lane: LaneView, width: int) -> Line:
    return sparkline(lane.rates, width, StyleRole.READ if lane.reading else StyleRole.GOOD)


def _head(lane: LaneView, width: int, columns: _Columns) -> Line:
    state = (*_name(lane), Span(f"{lane.label.glyph} ", lane.label.style))
    if not lane.busy:
        kept = f"keeps {figures.plural(lane.kept, 'row')} of its conversation" if lane.kept else "empty"
        return (*state, Span(_phase(lane, columns.text), lane.label.style), Span(" "), Span(kept, StyleRole.DIM))
    left = (
        *state,
        Span(_phase(lane, columns.text), lane.label.style),
        Span(" "),
        *_curve(lane, columns.curve),
        Span("  "),
        Span(lane.client, StyleRole.TEXT),
        Span(f" {lane.request}", StyleRole.DIM),
    )
    return spread(left, (Span(f" {lane.age:>9}", StyleRole.DIM),), width)


def _task(lane: LaneView) -> tuple[str, float, float, StyleRole]:
    """What the progress bar counts: its label, done, total, style."""
    if lane.reading:
        return "prompt", lane.read_done, lane.read_total, lane.label.style
    return "answer", lane.done, lane.limit, StyleRole.GOOD


def _facts(lane: LaneView, duration: Callable[[float | None], str], pad: int) -> list[Line]:
    """Times and shares, padded to common widths: the same fact stands under itself from lane to lane."""
    facts: list[Line] = []
    if lane.reading:
        facts.append((Span("left ", StyleRole.DIM), Span(column(duration(lane.left_s), pad), StyleRole.STRONG)))
    else:
        facts.append((Span("ttft ", StyleRole.DIM), Span(column(duration(lane.ttft_s), pad), StyleRole.TEXT)))
    facts.append((Span("cached ", StyleRole.DIM), Span(column(lane.cached, 5), StyleRole.TEXT)))
    if lane.per_round:
        facts.append((Span(lane.per_round, StyleRole.TEXT), Span(" tok/round", StyleRole.DIM)))
    return facts


def _progress_row(lane: LaneView, width: int, columns: _Columns) -> Line:
    if not lane.busy:
        return (
            Span(" " * _MARGIN_LEFT + column("answer", 8), StyleRole.FAINT),
            Span(TRACK * columns.bar, StyleRole.TRACK),
        )
    label, done, total, style = _task(lane)
    lead: Line = (
        Span(" " * _MARGIN_LEFT + column(label, 8), StyleRole.DIM),
        *progress(done, total, columns.bar, style),
        Span(f" {column(figures.percent(done, total), 6, Align.RIGHT)}  ", StyleRole.STRONG),
        Span(column(f"{figures.count(int(done))}/{figures.count(int(total))} tok", 20), StyleRole.TEXT),
    )
    room = width - _MARGIN_LEFT - 8 - columns.bar - 9 - 20
    return (*lead, *parts(_facts(lane, figures.span, 9), room))


def _window_bar(lane: LaneView, width: int) -> Line:
    held, style = (lane.rows, StyleRole.KV) if lane.busy else (lane.kept, StyleRole.KEPT)
    margin = max(0, lane.committed - held)
    return stacked(
        (Part(held, style), Part(margin, StyleRole.MARGIN, AHEAD)), lane.window, width, Part(0, StyleRole.TRACK, TRACK)
    )


def _window_row(lane: LaneView, width: int, columns: _Columns) -> Line:
    rows = lane.rows if lane.busy else lane.kept
    lead: Line = (
        Span(" " * _MARGIN_LEFT + column("window", 8), StyleRole.DIM),
        *_window_bar(lane, columns.bar),
        Span(
            f" {column(figures.percent(rows, lane.window), 6, Align.RIGHT)}  ",
            StyleRole.STRONG if lane.busy else StyleRole.DIM,
        ),
        Span(
            column(f"{figures.count(rows)}/{figures.count(lane.window)} rows", 20),
            StyleRole.TEXT if lane.busy else StyleRole.DIM,
        ),
    )
    room = width - _MARGIN_LEFT - 8 - columns.bar - 9 - 20
    committed: list[Line] = [
        (Span(column(figures.size(lane.committed_bytes), 14), StyleRole.DIM),),
        (Span(f"{figures.count(lane.committed)} committed", StyleRole.DIM),),
    ]
    return (*lead, *parts(committed, room))


def _both_bars(lane: LaneView, width: int) -> Line:
    """Progress and window side by side, for screens that have two rows a lane."""
    bar = max(8, (width - 59) // 2) if width < 104 else 24
    rows = lane.rows if lane.busy else lane.kept
    if lane.busy:
        _, done, total, style = _task(lane)
        left: Line = (
            *progress(done, total, bar, style),
            Span(f" {column(f'{figures.brief(int(done))}/{figures.brief(int(total))} tok', 14)}", StyleRole.TEXT),
        )
    else:
        left = (Span(TRACK * bar, StyleRole.TRACK), Span(" " * 15))
    used: Line = (
        Span("win ", StyleRole.DIM),
        *_window_bar(lane, bar),
        Span(
            f" {column(f'{figures.brief(rows)}/{figures.brief(lane.window)}', 11)}",
            StyleRole.TEXT if lane.busy else StyleRole.DIM,
        ),
    )
    room = width - 4 - 2 * bar - 31
    return (Span("    "), *left, *used, *(parts(_facts(lane, figures.short_span, 6), room, " ") if lane.busy else ()))


def _one_row(lane: LaneView, width: int) -> Line:
    """Everything that matters most in one row; what has no room is a digit key away."""
    rows = lane.rows if lane.busy else lane.kept
    _, done, total, style = _task(lane)
    tokens = f"{figures.brief(int(done))}/{figures.brief(int(total))}" if lane.busy else ""
    bar = 6 if width < 64 else 10
    room = width - 47 - bar
    more: list[Line] = []
    if lane.busy:
        more = [
            (Span(column(lane.client, 12), StyleRole.DIM),),
            progress(done, total, 10, style),
            *_facts(lane, figures.short_span, 6),
        ]
    return (
        *_name(lane),
        Span(f"{lane.label.glyph} ", lane.label.style),
        Span(_phase(lane, 19), lane.label.style),
        Span(f" {column(tokens, 10)} ", StyleRole.TEXT),
        *_window_bar(lane, bar),
        Span(f" {column(figures.percent(rows, lane.window), 5, Align.RIGHT)} ", StyleRole.DIM),
        *parts(more, room),
    )
