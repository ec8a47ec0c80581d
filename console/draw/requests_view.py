"""The requests view: what runs and what ended, the newest first, one line each with how it ended; or one in detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from console.draw import notes, request_detail
from console.draw.frame import DrawnAsShown, PanelContent, RowAt
from console.keys.views import ViewState
from console.session.api import PAGE
from console.session.fetched import FetchedRequests, row_key
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, cells, column, literal, wrap
from console.viewmodel.endings import ended
from console.viewmodel.labels import StatusLabel
from console.viewmodel.queue import QueueView
from console.viewmodel.rows import LaneView, ScreenView
from engine.protocol import LedgerRow

_KEYS = (("enter", "detail"), ("L", "its log"), ("x", "cancel"), ("/", "search"))

_WAITING_SHOWN = 4


@dataclass(frozen=True)
class Entry:
    """One line of the list: figures as they are shown, and the sentence."""

    time: str
    client: str
    prompt: str
    cached: str
    answer: str
    queue: str
    first: str
    rate: str
    label: StatusLabel
    sentence: str


@dataclass(frozen=True)
class _Column:
    """One figure: its title, its width, and the narrowest list that shows it."""

    title: str
    width: int
    figure: Callable[[Entry], str]
    least: int = 0


_TIME, _CLIENT = 8, {0: 10, 70: 12, 140: 20}
_COLUMNS = (
    _Column("prompt", 6, lambda entry: entry.prompt, 70),
    _Column("cached", 6, lambda entry: entry.cached, 90),
    _Column("answer", 6, lambda entry: entry.answer, 70),
    _Column("queue", 5, lambda entry: entry.queue, 100),
    _Column("first", 5, lambda entry: entry.first, 80),
    _Column("tok/s", 5, lambda entry: entry.rate, 90),
)


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """The list, or the detail of the request that `state` opened."""
    if state.detail is not None:
        return request_detail.content(view, state.detail, width)
    fetched = view.fetched.requests
    live = _live(view, fetched)
    length = len(live) + len(fetched.rows)
    if not length:
        return PanelContent("requests", _summary(view, state), tuple(_nothing(fetched, state, width)), _foot(view))
    day = figures.day(fetched.rows[0].finished_at) if fetched.rows else ""

    def entry(index: int) -> Entry:
        if index >= len(live):
            return _ended(fetched.rows[index - len(live)], day)
        shown = live[index]
        return _running(shown) if isinstance(shown, LaneView) else _waiting(shown)

    keys = (*(_id(shown) for shown in live), *_keys(fetched))
    chosen = keys.index(state.cursor) if state.cursor in keys else length
    rest = _rest(entry(chosen), width) if chosen < length else ()

    def draw(line: int) -> Line:
        if line <= chosen:
            return _line(entry(line), width)
        return rest[line - chosen - 1] if line <= chosen + len(rest) else _line(entry(line - len(rest)), width)

    return PanelContent(
        "requests",
        _summary(view, state),
        DrawnAsShown(length + len(rest), draw),
        _foot(view),
        head=(*notes.trouble(fetched.trouble, width), _titles(width)),
        rows=_rows(live, fetched, chosen, len(rest)),
    )


def _foot(view: ScreenView) -> Line:
    """The view's keys; without --write the action keys are left out."""
    return notes.keys(*(key for key in _KEYS if view.writes or key[0] != "x"))


def _live(view: ScreenView, fetched: FetchedRequests) -> list[LaneView | QueueView]:
    """The running requests and the longest waiting ones. The queue view lists all; here they would hide ended ones."""
    if view.lanes is None:
        return []
    over = {row.id for row in fetched.rows[:PAGE]}
    busy = [lane for lane in view.lanes.lanes if lane.busy and lane.request not in over]
    return [*busy, *[entry for entry in view.queue[:_WAITING_SHOWN] if entry.id not in over]]


def _id(shown: LaneView | QueueView) -> str:
    return shown.request if isinstance(shown, LaneView) else shown.id


@lru_cache(maxsize=4)
def _keys(fetched: FetchedRequests) -> tuple[str, ...]:
    return tuple(map(row_key, fetched.rows))


@lru_cache(maxsize=8)
def _ledger_rows(fetched: FetchedRequests, first: int) -> tuple[RowAt, ...]:
    """The ledger's rows, a line each, from line `first` on."""
    return tuple(RowAt(key, first + index) for index, key in enumerate(_keys(fetched)))


def _rows(live: list[LaneView | QueueView], fetched: FetchedRequests, chosen: int, more: int) -> tuple[RowAt, ...]:
    """A line for each request, and `more` lines for the chosen one, assembled from rows cached between frames."""
    plain = (*(RowAt(_id(shown), index) for index, shown in enumerate(live)), *_ledger_rows(fetched, len(live)))
    if not more:
        return plain
    moved = (
        *(RowAt(_id(shown), index + more) for index, shown in enumerate(live)),
        *_ledger_rows(fetched, len(live) + more),
    )
    return (*plain[:chosen], plain[chosen]._replace(lines=1 + more), *moved[chosen + 1 :])


def _running(lane: LaneView) -> Entry:
    sentence = lane.text if lane.reason is None else f"{lane.text}: {lane.reason}"
    return Entry(
        time=f"slot {lane.slot}",
        client=lane.client,
        prompt=figures.brief(lane.prompt),
        cached=lane.cached.replace(" ", ""),
        answer=figures.brief(lane.done) if lane.done else figures.NONE,
        queue=figures.short_span(lane.queue_s),
        first=figures.short_span(lane.ttft_s),
        rate=figures.rate(lane.tok_s),
        label=lane.label,
        sentence=sentence,
    )


def _waiting(entry: QueueView) -> Entry:
    return Entry(
        time="waiting",
        client=entry.client,
        prompt=entry.prompt.removesuffix(" tok").replace(",", ""),
        cached="",
        answer="",
        queue=entry.since.replace(" ", ""),
        first="",
        rate="",
        label=entry.label,
        sentence=f"{entry.label.text}: {entry.reason}" if entry.reason else entry.label.text,
    )


def _ended(row: LedgerRow, today: str) -> Entry:
    how = ended(row)
    day = figures.day(row.finished_at)
    return Entry(
        time=figures.clock_time(row.finished_at) if day == today else day,
        client=literal(row.client),
        prompt=figures.brief(row.prompt_tokens),
        cached=_cached(row),
        answer=figures.brief(row.completion_tokens) if row.completion_tokens else figures.NONE,
        queue=figures.short_span(row.queue_s),
        first=figures.short_span(row.ttft_s),
        rate=figures.rate(row.tok_s),
        label=how.label,
        sentence=how.sentence,
    )


def _cached(row: LedgerRow) -> str:
    if row.slot is None or not row.prompt_tokens:
        return figures.NONE
    return f"{100 * row.cached_tokens / row.prompt_tokens:.0f}%"


def _client_width(width: int) -> int:
    return max(wide for least, wide in _CLIENT.items() if width >= least)


def _shown(width: int) -> list[_Column]:
    return [each for each in _COLUMNS if width >= each.least]


def _used(width: int) -> int:
    """Cells left of the sentence."""
    return _TIME + 1 + _client_width(width) + sum(each.width + 1 for each in _shown(width)) + 2


def _titles(width: int) -> Line:
    text = f"{column('ended', _TIME)} {column('client', _client_width(width))}"
    text += "".join(f" {column(each.title, each.width, Align.RIGHT)}" for each in _shown(width))
    return (Span(column(f"{text}    how it ended", width), StyleRole.FAINT),)


def _line(entry: Entry, width: int) -> Line:
    line = [
        Span(column(entry.time, _TIME), StyleRole.DIM),
        Span(f" {column(entry.client, _client_width(width))}", StyleRole.STRONG),
    ]
    line += [Span(f" {column(each.figure(entry), each.width, Align.RIGHT)}") for each in _shown(width)]
    room = width - _used(width)
    line += [
        Span(f"  {entry.label.glyph} ", entry.label.style),
        Span(column(entry.sentence, room - 2), entry.label.style if _stands_out(entry.label) else StyleRole.TEXT),
    ]
    return tuple(line)


def _stands_out(label: StatusLabel) -> bool:
    return label.style in (
        StyleRole.BAD,
        StyleRole.BAD_STRONG,
        StyleRole.WAIT,
        StyleRole.WAIT_STRONG,
        StyleRole.GOOD_STRONG,
        StyleRole.READ_STRONG,
    )


def _rest(entry: Entry, width: int) -> tuple[Line, ...]:
    """The whole sentence under a chosen line that had no room for it."""
    if cells(entry.sentence) <= width - _used(width) - 2:
        return ()
    return tuple(
        (Span("  ↳ " if n == 0 else "    ", StyleRole.DIM), Span(text))
        for n, text in enumerate(wrap(entry.sentence, width - 4))
    )


def _summary(view: ScreenView, state: ViewState) -> Line:
    fetched = view.fetched.requests
    line: list[Span] = []
    if state.filter.strip():
        line += [Span(f"only “{literal(state.filter.strip())}”", StyleRole.WAIT), Span(" · ", StyleRole.DIM)]
    running = view.lanes.busy if view.lanes is not None else 0
    line.append(Span(f"{running} run, {figures.count(view.queue_total)} wait", StyleRole.DIM))
    if fetched.total is not None and fetched.trouble is None:
        line.append(Span(f" · {figures.count(fetched.total)} in the ledger", StyleRole.DIM))
        # The other rows are fetched while scrolling.
        if len(fetched.rows) < fetched.total:
            line.append(Span(f", {figures.count(len(fetched.rows))} here", StyleRole.DIM))
    return tuple(line)


def _nothing(fetched: FetchedRequests, state: ViewState, width: int) -> list[Line]:
    if fetched.trouble is not None:
        return list(notes.trouble(fetched.trouble, width))
    if fetched.total is None:
        return [(Span("◌ asking for the ledger …", StyleRole.DIM),)]
    if state.filter.strip():
        return [(Span(f"○ no request matches “{literal(state.filter.strip())}”", StyleRole.DIM),)]
    return [(Span("○ no request ended yet", StyleRole.DIM),)]
