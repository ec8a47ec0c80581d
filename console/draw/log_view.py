"""The log view: the engine's last lines, newest at the bottom, wrapped whole and shown literally."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from console import figures
from console.draw import notes
from console.draw.frame import DrawnAsShown, RowAt, Sheet
from console.feeds import LogFed
from console.screen import ScreenView
from console.spans import Line, Span, column, literal, wrap
from console.tones import Tone
from console.views import ViewState
from console.words import LEVEL_WORDS, Word
from engine.protocol import LogLine

# The time, a glyph and the level's word stand left of the text.
_MARGIN = 17
_FOOT = notes.keys(("enter", "its request"), ("/", "filter"), ("end", "follow"))
_TEXT_TONES = {"warning": Tone.WAIT, "error": Tone.BAD, "critical": Tone.BAD_STRONG, "debug": Tone.DIM}


@dataclass(frozen=True)
class _Layout:
    """The lines that fit the filter, where each begins in the body, and how many body lines they take."""

    lines: tuple[LogLine, ...]
    rows: tuple[RowAt, ...]
    starts: tuple[int, ...]
    length: int


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """The lines; it follows the newest until the cursor stands on one."""
    fed = view.fed.log
    wanted = " ".join(state.filter.casefold().split())
    layout = _layout(fed, wanted, width)

    def draw(index: int) -> Line:
        place = bisect_right(layout.starts, index) - 1
        return _drawn(layout.lines[place], width)[index - layout.starts[place]]

    body = DrawnAsShown(layout.length, draw) if layout.lines else _nothing(fed, state, width)
    head = notes.trouble(fed.trouble, width) if layout.lines else ()
    return Sheet("log", _summary(state, layout, len(fed.lines)), body, _FOOT, head=head, rows=layout.rows, tail=True)


@lru_cache(maxsize=4)
def _layout(fed: LogFed, wanted: str, width: int) -> _Layout:
    words = wanted.split()
    lines = tuple(line for line in fed.lines if _fits(line, words)) if words else fed.lines
    rows: list[RowAt] = []
    first = 0
    for line in lines:
        rows.append(RowAt(str(line.seq), first, len(_drawn(line, width))))
        first += rows[-1].lines
    return _Layout(lines, tuple(rows), tuple(row.first for row in rows), first)


def _fits(line: LogLine, words: list[str]) -> bool:
    text = f"{line.level} {_word(line).word} {line.event} {line.request or ''} {line.text}".casefold()
    return all(word in text for word in words)


def _word(line: LogLine) -> Word:
    return LEVEL_WORDS.get(line.level) or Word("○", literal(line.level), Tone.DIM)


@lru_cache(maxsize=4096)
def _drawn(line: LogLine, width: int) -> tuple[Line, ...]:
    """One log line as one or more lines of the screen."""
    word = _word(line)
    tone = _TEXT_TONES.get(line.level, Tone.TEXT)
    lead: Line = (
        Span(f"{figures.clock_time(line.at)} ", Tone.DIM),
        Span(f"{word.glyph} {column(word.word, 5)} ", word.tone),
    )
    event, request = literal(line.event), literal(line.request or "")
    named = " ".join(part for part in (event, request) if part)
    room = max(1, width - _MARGIN)
    # A line break within a line is kept: what follows it stands under the text, where no line of its own begins.
    first, *more = f"{named} {line.text}".rstrip().split("\n")
    texts = [part for paragraph in (first, *more) for part in wrap(literal(paragraph), room)]
    rows: list[Line] = []
    for n, text in enumerate(texts):
        rows.append((*(lead if n == 0 else (Span(" " * _MARGIN),)), Span(text, tone)))
    head = texts[0]
    if head.startswith(named):
        rows[0] = (
            *lead,
            Span(event, Tone.STRONG),
            Span(named[len(event) :], Tone.KEPT),
            Span(head[len(named) :], tone),
        )
    return tuple(rows)


def _summary(state: ViewState, layout: _Layout, held: int) -> Line:
    line: list[Span] = []
    if state.filter.strip():
        shown = f"{figures.count(len(layout.lines))} of {figures.count(held)}"
        line += [Span(f"only “{literal(state.filter.strip())}”, {shown}", Tone.WAIT), Span(" · ", Tone.DIM)]
    if state.cursor is None:
        line.append(Span("▼ following", Tone.GOOD))
        return tuple(line)
    newer = sum(line.seq > int(state.cursor) for line in layout.lines)
    line.append(Span(f"‖ held, {figures.plural(newer, 'line')} below: end follows", Tone.WAIT))
    return tuple(line)


def _nothing(fed: LogFed, state: ViewState, width: int) -> tuple[Line, ...]:
    if fed.trouble is not None:
        return notes.trouble(fed.trouble, width)
    if not fed.answered:
        return ((Span("◌ asking for the log …", Tone.DIM),),)
    if fed.lines:
        return ((Span(f"○ no line matches “{literal(state.filter.strip())}”", Tone.DIM),),)
    return ((Span("○ no line yet", Tone.DIM),),)
