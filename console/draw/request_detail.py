"""One request at length: how it ended, where its time went, and every figure the ledger has."""

from __future__ import annotations

from console.draw import notes
from console.draw.bars import Part, stacked
from console.draw.frame import PanelContent
from console.session.fetched import find_row
from console.text import figures
from console.text.spans import Line, Span, StyleRole, clip, column, literal, wrap
from console.viewmodel.endings import ended
from console.viewmodel.labels import StatusLabel
from console.viewmodel.queue import QueueView
from console.viewmodel.rows import LaneView, ScreenView
from engine.protocol import LedgerRow

_LABEL = 13
_TWO_COLUMNS = 76
# Wider, the two columns of figures would lie too far apart to be read together.
_WIDEST = 120
_ROUTES = {
    "home": "home: the slot that holds its conversation",
    "empty": "empty: a slot that kept nothing",
    "least recently used": "least recently used: the slot whose conversation rested longest",
}
_SOURCES = {"none": "nothing: the prompt was read whole", "resident": "resident: rows its slot had kept"}

Fact = tuple[str, str]


def content(view: ScreenView, key: str, width: int) -> PanelContent:
    """The request with that key or id: running, waiting or ended; a note where there is none."""
    row = find_row(view.fetched.requests, key)
    if row is not None:
        return _ended(row, width, view.textures)
    for lane in view.lanes.lanes if view.lanes is not None else ():
        if lane.busy and lane.request == key:
            return _running(lane, width)
    for entry in view.queue:
        if entry.id == key:
            return _waiting(entry, width)
    name = literal(key.partition(" ")[0])
    instead = notes.trouble(view.fetched.requests.trouble, width) or (
        (Span("◌ not in the ledger yet", StyleRole.DIM),),
    )
    return PanelContent(f"request {name}", body=instead, foot=_FOOT)


def _ended(row: LedgerRow, width: int, textures: bool) -> PanelContent:
    how = ended(row)
    timing: list[Fact] = [
        ("queue", figures.span(row.queue_s)),
        ("first token", figures.span(row.ttft_s)),
        ("prompt read", f"{figures.span(row.prefill_s)}{_reading_rate(row)}"),
        ("answer", f"{figures.span(row.decode_s)}{_at_rate(row.tok_s)}"),
        ("in all", figures.span(row.total_s)),
        ("worst pause", figures.span(row.worst_gap_s)),
    ]
    limit = f" of at most {figures.count(row.max_tokens)}" if row.max_tokens is not None else ""
    counts: list[Fact] = [
        ("prompt", figures.plural(row.prompt_tokens, "token")),
        (
            "cached",
            f"{figures.plural(row.cached_tokens, 'token')}, {figures.percent(row.cached_tokens, row.prompt_tokens)}",
        ),
        ("read anew", figures.plural(max(0, row.prompt_tokens - row.cached_tokens), "token")),
        ("written", f"{figures.plural(row.completion_tokens, 'token')}{limit}"),
        ("ended", how.label.text),
        ("slot", figures.NONE if row.slot is None else str(row.slot)),
    ]
    whole: list[Fact] = [
        ("client", literal(row.client)),
        ("model", literal(row.model)),
        ("arrived", f"{figures.day(row.arrived_at)} {figures.clock_time(row.arrived_at)}"),
        ("finished", f"{figures.day(row.finished_at)} {figures.clock_time(row.finished_at)}"),
        ("cache", _SOURCES.get(row.cache_source, literal(row.cache_source))),
        ("route", figures.NONE if row.route is None else _ROUTES.get(row.route, literal(row.route))),
    ]
    body = [
        *_sentence(how.label, how.sentence, width),
        (),
        *_timeline(row, width, textures),
        (),
        *_facts(timing, counts, width),
        (),
        *(line for fact in whole for line in _fact_lines(fact, width)),
    ]
    return PanelContent(f"request {literal(row.id)}", (Span(how.label.text, how.label.style),), tuple(body), _FOOT)


_FOOT = notes.keys(("L", "its log lines"), ("esc", "back"))
_FOOT_LIVE = notes.keys(("x", "cancel"), ("L", "its log lines"), ("esc", "back"))


def _running(lane: LaneView, width: int) -> PanelContent:
    timing: list[Fact] = [
        ("queue", figures.span(lane.queue_s)),
        ("first token", figures.span(lane.ttft_s)),
        ("so far", lane.age),
        ("worst pause", figures.span(lane.worst_gap_s)),
    ]
    counts: list[Fact] = [
        ("prompt", f"{figures.count(lane.read_done)} of {figures.plural(lane.read_total, 'token')} read"),
        ("cached", f"{figures.plural(lane.cached_tokens, 'token')}, {lane.cached}"),
        ("written", f"{figures.plural(lane.done, 'token')} of at most {figures.count(lane.limit)}"),
        ("slot", f"{lane.slot}, {lane.kind}"),
    ]
    body = [
        *_sentence(lane.label, lane.text if not lane.reason else f"{lane.text}: {lane.reason}", width),
        (),
        *_facts(timing, counts, width),
        (),
        *_fact_lines(("client", lane.client), width),
    ]
    return PanelContent(f"request {lane.request}", (Span(lane.label.text, lane.label.style),), tuple(body), _FOOT_LIVE)


def _waiting(entry: QueueView, width: int) -> PanelContent:
    sentence = f"{entry.label.text}: {entry.reason}" if entry.reason else entry.label.text
    facts: list[Fact] = [("waits for", entry.since), ("prompt", entry.prompt), ("client", entry.client)]
    body = [
        *_sentence(entry.label, sentence, width),
        (),
        *(line for fact in facts for line in _fact_lines(fact, width)),
    ]
    return PanelContent(f"request {entry.id}", (Span("waiting", StyleRole.WAIT_STRONG),), tuple(body), _FOOT_LIVE)


def _sentence(label: StatusLabel, sentence: str, width: int) -> list[Line]:
    first, *more = wrap(sentence, max(1, width - 2))
    return [
        (Span(f"{label.glyph} ", label.style), Span(first, StyleRole.STRONG)),
        *((Span(f"  {text}", StyleRole.STRONG),) for text in more),
    ]


def _at_rate(rate: float | None) -> str:
    return f", {figures.rate(rate)} tok/s" if rate is not None else ""


def _reading_rate(row: LedgerRow) -> str:
    read = row.prompt_tokens - row.cached_tokens
    return _at_rate(read / row.prefill_s) if row.prefill_s and read > 0 else ""


def _timeline(row: LedgerRow, width: int, textures: bool) -> list[Line]:
    """Queue, prompt and answer as parts of the whole time, and what each took under it."""
    spans = [
        ("queue", row.queue_s, StyleRole.WAIT, "░"),
        ("prompt", row.prefill_s, StyleRole.READ, "▒"),
        ("answer", row.decode_s, StyleRole.GOOD, "█"),
    ]
    known = [(name, seconds, style, glyph) for name, seconds, style, glyph in spans if seconds is not None]
    if not known:
        return [(Span(clip(f"it got no slot in its {figures.span(row.total_s)}", width), StyleRole.DIM),)]
    whole = max(row.total_s, sum(seconds for _, seconds, _, _ in known))
    filled = [Part(seconds, style, glyph if textures else "█") for _, seconds, style, glyph in known]
    bar = stacked(filled, whole, width, Part(0, StyleRole.TRACK, "·"))
    legend: list[Line] = [
        (
            Span(f"{glyph if textures else '■'} ", style),
            Span(f"{name} ", StyleRole.DIM),
            Span(figures.span(seconds), StyleRole.TEXT),
            Span(f"  {figures.percent(seconds, whole)}", StyleRole.DIM),
        )
        for name, seconds, style, glyph in known
    ]
    return [bar, *notes.flowed(legend, width, "    ")]


def _facts(left: list[Fact], right: list[Fact], width: int) -> list[Line]:
    """Two lists side by side where there is room, else one under the other."""
    if width < _TWO_COLUMNS:
        return [line for fact in [*left, *right] for line in _fact_lines(fact, width)]
    half = min(width, _WIDEST) // 2
    return [(*_fact(one, half - 2), Span("  "), *_fact(other, half)) for one, other in zip(left, right, strict=True)]


def _fact(fact: Fact, width: int) -> Line:
    label, value = fact
    return (Span(column(label, _LABEL), StyleRole.DIM), Span(column(clip(value, width - _LABEL), width - _LABEL)))


def _fact_lines(fact: Fact, width: int) -> list[Line]:
    label, value = fact
    first, *more = wrap(value, max(1, width - _LABEL)) or [""]
    return [(Span(column(label, _LABEL), StyleRole.DIM), Span(first)), *((Span(" " * _LABEL + text),) for text in more)]
