"""The requests view: what runs and what ended, the newest first, one line each with how it ended; or one in detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from console import figures
from console.asks import PAGE
from console.draw import notes, request_detail
from console.draw.frame import DrawnAsShown, RowAt, Sheet
from console.feeds import RequestsFed, row_key
from console.parts.endings import ended
from console.parts.queue import QueueView
from console.screen import LaneView, ScreenView
from console.spans import Align, Line, Span, cells, column, literal, wrap
from console.tones import Tone
from console.views import ViewState
from console.words import Word
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
    word: Word
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


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """The list, or the detail of the request that `state` opened."""
    if state.detail is not None:
        return request_detail.sheet(view, state.detail, width)
    fed = view.fed.requests
    live = _live(view, fed)
    length = len(live) + len(fed.rows)
    if not length:
        return Sheet("requests", _summary(view, state), tuple(_nothing(fed, state, width)), _foot(view))
    day = figures.day(fed.rows[0].finished_at) if fed.rows else ""

    def entry(index: int) -> Entry:
        if index >= len(live):
            return _ended(fed.rows[index - len(live)], day)
        shown = live[index]
        return _running(shown) if isinstance(shown, LaneView) else _waiting(shown)

    keys = (*(_id(shown) for shown in live), *_keys(fed))
    chosen = keys.index(state.cursor) if state.cursor in keys else length
    rest = _rest(entry(chosen), width) if chosen < length else ()

    def draw(line: int) -> Line:
        if line <= chosen:
            return _line(entry(line), width)
        return rest[line - chosen - 1] if line <= chosen + len(rest) else _line(entry(line - len(rest)), width)

    return Sheet(
        "requests",
        _summary(view, state),
        DrawnAsShown(length + len(rest), draw),
        _foot(view),
        head=(*notes.trouble(fed.trouble, width), _titles(width)),
        rows=_rows(live, fed, chosen, len(rest)),
    )


def _foot(view: ScreenView) -> Line:
    """The view's keys; no order is offered where none would be carried out."""
    return notes.keys(*(key for key in _KEYS if view.writes or key[0] != "x"))


def _live(view: ScreenView, fed: RequestsFed) -> list[LaneView | QueueView]:
    """What runs, and those that wait longest: the queue view has them all, and they must not hide what ended."""
    if view.lanes is None:
        return []
    over = {row.id for row in fed.rows[:PAGE]}
    busy = [lane for lane in view.lanes.lanes if lane.busy and lane.request not in over]
    return [*busy, *[entry for entry in view.queue[:_WAITING_SHOWN] if entry.id not in over]]


def _id(shown: LaneView | QueueView) -> str:
    return shown.request if isinstance(shown, LaneView) else shown.id


@lru_cache(maxsize=4)
def _keys(fed: RequestsFed) -> tuple[str, ...]:
    return tuple(map(row_key, fed.rows))


@lru_cache(maxsize=8)
def _ledger_rows(fed: RequestsFed, first: int) -> tuple[RowAt, ...]:
    """The ledger's rows, a line each, from line `first` on."""
    return tuple(RowAt(key, first + index) for index, key in enumerate(_keys(fed)))


def _rows(live: list[LaneView | QueueView], fed: RequestsFed, chosen: int, more: int) -> tuple[RowAt, ...]:
    """A line for each request, `more` for the one that is chosen: put together from what is kept between frames."""
    plain = (*(RowAt(_id(shown), index) for index, shown in enumerate(live)), *_ledger_rows(fed, len(live)))
    if not more:
        return plain
    moved = (
        *(RowAt(_id(shown), index + more) for index, shown in enumerate(live)),
        *_ledger_rows(fed, len(live) + more),
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
        word=lane.word,
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
        word=entry.word,
        sentence=f"{entry.word.word}: {entry.reason}" if entry.reason else entry.word.word,
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
        word=how.word,
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
    return (Span(column(f"{text}    how it ended", width), Tone.FAINT),)


def _line(entry: Entry, width: int) -> Line:
    line = [
        Span(column(entry.time, _TIME), Tone.DIM),
        Span(f" {column(entry.client, _client_width(width))}", Tone.STRONG),
    ]
    line += [Span(f" {column(each.figure(entry), each.width, Align.RIGHT)}") for each in _shown(width)]
    room = width - _used(width)
    line += [
        Span(f"  {entry.word.glyph} ", entry.word.tone),
        Span(column(entry.sentence, room - 2), entry.word.tone if _stands_out(entry.word) else Tone.TEXT),
    ]
    return tuple(line)


def _stands_out(word: Word) -> bool:
    return word.tone in (Tone.BAD, Tone.BAD_STRONG, Tone.WAIT, Tone.WAIT_STRONG, Tone.GOOD_STRONG, Tone.READ_STRONG)


def _rest(entry: Entry, width: int) -> tuple[Line, ...]:
    """The whole sentence under a chosen line that had no room for it."""
    if cells(entry.sentence) <= width - _used(width) - 2:
        return ()
    return tuple(
        (Span("  ↳ " if n == 0 else "    ", Tone.DIM), Span(text))
        for n, text in enumerate(wrap(entry.sentence, width - 4))
    )


def _summary(view: ScreenView, state: ViewState) -> Line:
    fed = view.fed.requests
    line: list[Span] = []
    if state.filter.strip():
        line += [Span(f"only “{literal(state.filter.strip())}”", Tone.WAIT), Span(" · ", Tone.DIM)]
    running = view.lanes.busy if view.lanes is not None else 0
    line.append(Span(f"{running} run, {figures.count(view.queue_total)} wait", Tone.DIM))
    if fed.total is not None and fed.trouble is None:
        line.append(Span(f" · {figures.count(fed.total)} in the ledger", Tone.DIM))
        # The rest comes as one scrolls.
        if len(fed.rows) < fed.total:
            line.append(Span(f", {figures.count(len(fed.rows))} here", Tone.DIM))
    return tuple(line)


def _nothing(fed: RequestsFed, state: ViewState, width: int) -> list[Line]:
    if fed.trouble is not None:
        return list(notes.trouble(fed.trouble, width))
    if fed.total is None:
        return [(Span("◌ asking for the ledger …", Tone.DIM),)]
    if state.filter.strip():
        return [(Span(f"○ no request matches “{literal(state.filter.strip())}”", Tone.DIM),)]
    return [(Span("○ no request ended yet", Tone.DIM),)]
