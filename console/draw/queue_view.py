"""The queue view: each waiting request, the longest wait first, with the whole sentence that says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from console.draw import lanes
from console.draw.frame import PanelContent, RowAt, in_blocks
from console.keys.views import ViewState
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, column, parts, wrap
from console.viewmodel.labels import STATUS_LABELS
from console.viewmodel.queue import QueueView, WaitingQueue, WaitReason
from console.viewmodel.rows import ScreenView
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


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """A row and a reason for each request; only what is in sight is drawn."""
    if view.lanes is None or view.loading is not None:
        return replace(lanes.lanes(view, width, 1), title="queue")
    if not view.queue_total:
        return PanelContent("queue", body=((), *_nothing(view, width)))
    entries = view.queue.by_age()
    ids, whys = entries.ids(), entries.whys()
    if state.detail in ids:
        place = ids.index(state.detail)
        return _detail(entries[place], place + 1, len(entries), width)
    if not entries:
        return PanelContent("queue", body=((Span(f"none of {view.queue_total} matches the filter", StyleRole.DIM),),))
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
    foot: Line = (Span("enter", StyleRole.KEY), Span(" opens a request", StyleRole.DIM))
    body = in_blocks([row.lines for row in rows], line)
    return PanelContent("queue", _summary(view, entries), body, foot, head=head, rows=tuple(rows))


def _nothing(view: ScreenView, width: int) -> tuple[Line, ...]:
    busy, slots = (view.lanes.busy, view.lanes.slots) if view.lanes else (0, 0)
    now = "a request that comes now begins at once where its memory fits"
    if view.header.status == STATUS_LABELS[Status.DRAINING]:
        now = "the engine drains and takes no request"
    elif view.link.stale:
        now = "as far as the last snapshot says"
    elif busy >= slots:
        now = "a request that comes now waits for one of them"
    sentence = wrap(f"{busy} of {figures.plural(slots, 'slot')} busy; {now}", max(10, width - 2))
    return ((Span("○ nothing waits", StyleRole.TEXT),), *((Span(f"  {part}", StyleRole.DIM),) for part in sentence))


def _summary(view: ScreenView, entries: WaitingQueue) -> Line:
    shown = str(view.queue_total)
    if len(entries) != view.queue_total:
        shown = f"{len(entries)} of {view.queue_total}"
    return (Span(f"{shown} waiting", StyleRole.WAIT), Span(f" · longest {entries[0].since}", StyleRole.DIM))


def _states(entries: WaitingQueue, whys: list[WaitReason], width: int) -> tuple[Line, ...]:
    """How many wait for what."""
    counts = Counter(why.label for why in whys)
    words: list[Line] = [
        (
            Span(f"{label.glyph} ", StyleRole.WAIT),
            Span(f"{count} ", StyleRole.STRONG),
            Span(_number(label.text, count), StyleRole.DIM),
        )
        for label, count in counts.most_common()
    ]
    words.append((Span(f"{figures.count(entries.prompt_tokens())} prompt tok in all", StyleRole.DIM),))
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
    return (Span("".join(titles), StyleRole.FAINT),)


def _row(entry: QueueView, number: int, columns: _Columns) -> Line:
    line = [
        Span(column(str(number), 4, Align.RIGHT), StyleRole.DIM),
        Span(" "),
        Span(column(entry.since, _AGE), StyleRole.TEXT),
        Span(column(f"{entry.label.glyph} {entry.label.text}", _STATE - 1), StyleRole.WAIT),
        Span(" "),
        Span(column(entry.client, columns.client - 1), StyleRole.STRONG),
        Span(" "),
    ]
    if columns.request:
        line.append(Span(column(entry.id, columns.request), StyleRole.DIM))
    if columns.asks:
        line.append(Span(column(figures.count(entry.prompt_tokens), columns.asks, Align.RIGHT)))
        line.append(Span(column(figures.count(entry.max_tokens), columns.asks, Align.RIGHT), StyleRole.DIM))
    if columns.home:
        home = figures.NONE if entry.home is None else str(entry.home)
        line.append(Span(column(home, columns.home, Align.RIGHT), StyleRole.DIM))
    return tuple(line)


# Most of a long queue gives the same few reasons.
@lru_cache(maxsize=1024)
def _reason(reason: str, width: int) -> tuple[Line, ...]:
    first, *rest = wrap(reason, max(10, width - 7))
    if not first:
        return ()
    return (
        (Span("     ↳ ", StyleRole.WAIT), Span(first)),
        *((Span("       ", StyleRole.WAIT), Span(text)) for text in rest),
    )


def _detail(entry: QueueView, place: int, count: int, width: int) -> PanelContent:
    fields = [
        ("request", entry.id),
        ("client", entry.client),
        ("state", f"{entry.label.glyph} {entry.label.text}"),
        ("waits", f"{entry.since}, number {place} of {count} by age"),
        ("prompt", f"{figures.count(entry.prompt_tokens)} tok"),
        ("at most", f"{figures.count(entry.max_tokens)} tok to write"),
        ("home slot", figures.NONE if entry.home is None else str(entry.home)),
    ]
    body: list[Line] = [(Span(column(name, 12), StyleRole.DIM), Span(text)) for name, text in fields]
    body += [(), (Span("why it waits", StyleRole.DIM),)]
    body += [(Span(f"  {text}", StyleRole.WAIT),) for text in wrap(entry.reason, width - 2)]
    summary: Line = (Span("esc", StyleRole.KEY), Span(" the whole queue", StyleRole.DIM))
    return PanelContent("waiting request", summary, tuple(body))
