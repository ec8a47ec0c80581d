"""The log view: the engine's last lines, newest at the bottom, wrapped whole and shown literally."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from console.draw import notes
from console.draw.frame import DrawnAsShown, PanelContent, RowAt
from console.keys.views import ViewState
from console.session.fetched import FetchedLog
from console.text import figures
from console.text.spans import Line, Span, StyleRole, column, literal, wrap
from console.viewmodel.labels import LEVEL_LABELS, StatusLabel
from console.viewmodel.rows import ScreenView
from engine.protocol import LogLine

# The time, a glyph and the level's word stand left of the text.
_MARGIN = 17
_FOOT = notes.keys(("enter", "its request"), ("/", "filter"), ("end", "follow"))
_TEXT_STYLES = {
    "warning": StyleRole.WAIT,
    "error": StyleRole.BAD,
    "critical": StyleRole.BAD_STRONG,
    "debug": StyleRole.DIM,
}


@dataclass(frozen=True)
class _Layout:
    """The lines that fit the filter, where each begins in the body, and how many body lines they take."""

    lines: tuple[LogLine, ...]
    rows: tuple[RowAt, ...]
    starts: tuple[int, ...]
    length: int


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """The lines; it follows the newest until the cursor stands on one."""
    fetched = view.fetched.log
    wanted = " ".join(state.filter.casefold().split())
    layout = _layout(fetched, wanted, width)

    def draw(index: int) -> Line:
        place = bisect_right(layout.starts, index) - 1
        return _drawn(layout.lines[place], width)[index - layout.starts[place]]

    body = DrawnAsShown(layout.length, draw) if layout.lines else _nothing(fetched, state, width)
    head = notes.trouble(fetched.trouble, width) if layout.lines else ()
    return PanelContent(
        "log", _summary(state, layout, len(fetched.lines)), body, _FOOT, head=head, rows=layout.rows, tail=True
    )


@lru_cache(maxsize=4)
def _layout(fetched: FetchedLog, wanted: str, width: int) -> _Layout:
    words = wanted.split()
    lines = tuple(line for line in fetched.lines if _fits(line, words)) if words else fetched.lines
    rows: list[RowAt] = []
    first = 0
    for line in lines:
        rows.append(RowAt(str(line.seq), first, len(_drawn(line, width))))
        first += rows[-1].lines
    return _Layout(lines, tuple(rows), tuple(row.first for row in rows), first)


def _fits(line: LogLine, words: list[str]) -> bool:
    text = f"{line.level} {_label(line).text} {line.event} {line.request or ''} {line.text}".casefold()
    return all(word in text for word in words)


def _label(line: LogLine) -> StatusLabel:
    return LEVEL_LABELS.get(line.level) or StatusLabel("○", literal(line.level), StyleRole.DIM)


@lru_cache(maxsize=4096)
def _drawn(line: LogLine, width: int) -> tuple[Line, ...]:
    """One log line as one or more lines of the screen."""
    label = _label(line)
    style = _TEXT_STYLES.get(line.level, StyleRole.TEXT)
    lead: Line = (
        Span(f"{figures.clock_time(line.at)} ", StyleRole.DIM),
        Span(f"{label.glyph} {column(label.text, 5)} ", label.style),
    )
    event, request = literal(line.event), literal(line.request or "")
    named = " ".join(part for part in (event, request) if part)
    room = max(1, width - _MARGIN)
    # A line break within a log line is kept. The text after it is indented, so that it cannot pass for a log line.
    first, *more = f"{named} {line.text}".rstrip().split("\n")
    texts = [part for paragraph in (first, *more) for part in wrap(literal(paragraph), room)]
    rows: list[Line] = []
    for n, text in enumerate(texts):
        rows.append((*(lead if n == 0 else (Span(" " * _MARGIN),)), Span(text, style)))
    head = texts[0]
    if head.startswith(named):
        rows[0] = (
            *lead,
            Span(event, StyleRole.STRONG),
            Span(named[len(event) :], StyleRole.KEPT),
            Span(head[len(named) :], style),
        )
    return tuple(rows)


def _summary(state: ViewState, layout: _Layout, held: int) -> Line:
    line: list[Span] = []
    if state.filter.strip():
        shown = f"{figures.count(len(layout.lines))} of {figures.count(held)}"
        line += [Span(f"only “{literal(state.filter.strip())}”, {shown}", StyleRole.WAIT), Span(" · ", StyleRole.DIM)]
    if state.cursor is None:
        line.append(Span("▼ following", StyleRole.GOOD))
        return tuple(line)
    newer = sum(line.seq > int(state.cursor) for line in layout.lines)
    line.append(Span(f"‖ held, {figures.plural(newer, 'line')} below: end follows", StyleRole.WAIT))
    return tuple(line)


def _nothing(fetched: FetchedLog, state: ViewState, width: int) -> tuple[Line, ...]:
    if fetched.trouble is not None:
        return notes.trouble(fetched.trouble, width)
    if not fetched.answered:
        return ((Span("◌ asking for the log …", StyleRole.DIM),),)
    if fetched.lines:
        return ((Span(f"○ no line matches “{literal(state.filter.strip())}”", StyleRole.DIM),),)
    return ((Span("○ no line yet", StyleRole.DIM),),)
