"""The queue view: each waiting request, the longest wait first, with the whole sentence that says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from msgspec.structs import replace

from console import figures
from console.draw import lanes
from console.draw.frame import RowAt, Sheet, in_blocks
from console.parts.queue import QueueView, Waiting, Why
from console.screen import ScreenView
from console.spans import Align, Line, Span, column, parts, wrap
from console.tones import Tone
from console.views import ViewState
from console.words import STATUS_WORDS
from engine.protocol import Status

_WIDE = 92
_NARROW = 68
_AGE = 10
_STATE = 28
_LEAD = 5 + _AGE + _STATE


@dataclass(frozen=True)
class _Columns:
    """Widths of the table's columns; those of width 0 are left out."""

    client: int
    request: int
    asks: int
    home: int


def _columns(width: int) -> _Columns:
    if width >= _WIDE:
        return _Columns(client=min(40, width - _LEAD - 18 - 9 - 9 - 6), request=18, asks=9, home=6)
    if width >= _NARROW:
        return _Columns(client=width - _LEAD - 8 - 8, request=0, asks=8, home=0)
    return _Columns(client=max(1, width - _LEAD), request=0, asks=0, home=0)


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """A row and a reason for each request; only what is in sight is drawn."""
    if view.lanes is None or view.loading is not None:
        return replace(lanes.lanes(view, width, 1), title="queue")
    if not view.queue_total:
        return Sheet("queue", body=((), *_nothing(view, width)))
    entries = view.queue.by_age()
    ids, whys = entries.ids(), entries.whys()
    if state.detail in ids:
        place = ids.index(state.detail)
        return _detail(entries[place], place + 1, len(entries), width)
    if not entries:
        return Sheet("queue", body=((Span(f"none of {view.queue_total} matches the filter", Tone.DIM),),))
    rows: list[RowAt] = []
    first = 0
    for name, why in zip(ids, whys, strict=True):
        lines = 1 + len(_reason(why.reason, width))
        rows.append(RowAt(name, first, lines))
        first += lines
    columns = _columns(width)

    def line(index: int, part: int) -> Line:
        entry = entries[index]
        if not part:
            return _row(entry, index + 1, columns)
        return _reason(entry.reason, width)[part - 1]

    head = (*_states(entries, whys, width), _titles(columns))
    foot: Line = (Span("enter", Tone.KEY), Span(" opens a request", Tone.DIM))
    body = in_blocks([row.lines for row in rows], line)
    return Sheet("queue", _summary(view, entries), body, foot, head=head, rows=tuple(rows))


def _nothing(view: ScreenView, width: int) -> tuple[Line, ...]:
    busy, slots = (view.lanes.busy, view.lanes.slots) if view.lanes else (0, 0)
    now = "a request that comes now begins at once where its memory fits"
    if view.header.status == STATUS_WORDS[Status.DRAINING]:
        now = "the engine drains and takes no request"
    elif view.link.stale:
        now = "as far as the last snapshot says"
    elif busy >= slots:
        now = "a request that comes now waits for one of them"
    sentence = wrap(f"{busy} of {figures.plural(slots, 'slot')} busy; {now}", max(10, width - 2))
    return ((Span("○ nothing waits", Tone.TEXT),), *((Span(f"  {part}", Tone.DIM),) for part in sentence))


def _summary(view: ScreenView, entries: Waiting) -> Line:
    shown = str(view.queue_total)
    if len(entries) != view.queue_total:
        shown = f"{len(entries)} of {view.queue_total}"
    return (Span(f"{shown} waiting", Tone.WAIT), Span(f" · longest {entries[0].since}", Tone.DIM))


def _states(entries: Waiting, whys: list[Why], width: int) -> tuple[Line, ...]:
    """How many wait for what."""
    counts = Counter(why.word for why in whys)
    words: list[Line] = [
        (Span(f"{word.glyph} ", Tone.WAIT), Span(f"{count} ", Tone.STRONG), Span(_number(word.word, count), Tone.DIM))
        for word, count in counts.most_common()
    ]
    words.append((Span(f"{figures.count(entries.prompt_tokens())} prompt tok in all", Tone.DIM),))
    return (parts(words, width, "   "), ())


def _number(words: str, count: int) -> str:
    return words if count == 1 else words.replace("waits", "wait", 1)


def _titles(columns: _Columns) -> Line:
    titles = [column("#", 4, Align.RIGHT), " ", column("age", _AGE), column("state", _STATE)]
    titles += [column("client", columns.client)]
    if columns.request:
        titles.append(column("request", columns.request))
    if columns.asks:
        titles += [column("prompt", columns.asks, Align.RIGHT), column("at most", columns.asks, Align.RIGHT)]
    if columns.home:
        titles.append(column("home", columns.home, Align.RIGHT))
    return (Span("".join(titles), Tone.FAINT),)


def _row(entry: QueueView, number: int, columns: _Columns) -> Line:
    line = [
        Span(column(str(number), 4, Align.RIGHT), Tone.DIM),
        Span(" "),
        Span(column(entry.since, _AGE), Tone.TEXT),
        Span(column(f"{entry.word.glyph} {entry.word.word}", _STATE - 1), Tone.WAIT),
        Span(" "),
        Span(column(entry.client, columns.client - 1), Tone.STRONG),
        Span(" "),
    ]
    if columns.request:
        line.append(Span(column(entry.id, columns.request), Tone.DIM))
    if columns.asks:
        line.append(Span(column(figures.count(entry.prompt_tokens), columns.asks, Align.RIGHT)))
        line.append(Span(column(figures.count(entry.max_tokens), columns.asks, Align.RIGHT), Tone.DIM))
    if columns.home:
        home = figures.NONE if entry.home is None else str(entry.home)
        line.append(Span(column(home, columns.home, Align.RIGHT), Tone.DIM))
    return tuple(line)


# Most of a long queue gives the same few reasons.
@lru_cache(maxsize=1024)
def _reason(reason: str, width: int) -> tuple[Line, ...]:
    first, *rest = wrap(reason, max(10, width - 7))
    if not first:
        return ()
    return ((Span("     ↳ ", Tone.WAIT), Span(first)), *((Span("       ", Tone.WAIT), Span(text)) for text in rest))


def _detail(entry: QueueView, place: int, count: int, width: int) -> Sheet:
    fields = [
        ("request", entry.id),
        ("client", entry.client),
        ("state", f"{entry.word.glyph} {entry.word.word}"),
        ("waits", f"{entry.since}, number {place} of {count} by age"),
        ("prompt", f"{figures.count(entry.prompt_tokens)} tok"),
        ("at most", f"{figures.count(entry.max_tokens)} tok to write"),
        ("home slot", figures.NONE if entry.home is None else str(entry.home)),
    ]
    body: list[Line] = [(Span(column(name, 12), Tone.DIM), Span(text)) for name, text in fields]
    body += [(), (Span("why it waits", Tone.DIM),)]
    body += [(Span(f"  {text}", Tone.WAIT),) for text in wrap(entry.reason, width - 2)]
    summary: Line = (Span("esc", Tone.KEY), Span(" the whole queue", Tone.DIM))
    return Sheet("waiting request", summary, tuple(body))
