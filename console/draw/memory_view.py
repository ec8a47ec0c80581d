"""The memory view: the bar that adds up, every part with its share, pages, the pressure ladder, and addresses apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from console.draw import lanes, panels, strips
from console.draw.bars import FILL, Part, chart, shrunk, stacked
from console.draw.frame import PanelContent
from console.keys.views import ViewState
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, column, fit, parts, width_of, wrap
from console.viewmodel.rows import LadderRow, MemoryView, PoolView, ScreenView

_TWO_COLUMNS = 92
_GAP = 4
_CURVE_ROWS = range(3, 6)
_AXIS = 10
_GAP_SHARE = 0.001


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """Where every byte is; what is only reserved stands at the end, since it is no memory."""
    shown, pool = view.memory, view.pool
    if shown is None or pool is None:
        return replace(lanes.lanes(view, width, 1), title="memory")
    if view.loading is not None:
        # Floors and pages come with the model.
        bar = _bar(shown, width, view.textures)[:2]
        return PanelContent(
            "memory", body=(*bar, (), *_table(shown, width, view.textures), *lanes.lanes(view, width, 1).body)
        )
    body: list[Line] = [*_bar(shown, width, view.textures)]
    for device in shown.devices:
        body += [(), *_bar(device, width, view.textures)[:-1], _legend(device, width, view.textures)]
    body.append(())
    if width >= _TWO_COLUMNS:
        # The table needs less than half; bars take what is left.
        left = min(58, width // 2)
        right = width - left - _GAP
        table, pages = _table(shown, left, view.textures), _pages(pool, right)
        for ours, theirs in zip_longest(table, pages, fillvalue=()):
            body.append((*fit(ours, left), Span(" " * _GAP), *theirs))
    else:
        body += [*_table(shown, width, view.textures), (), *_pages(pool, width)]
    below = [(), *_ladder(shown, width), (), *_reserved(pool, width)]
    # The curve takes the height that nothing else needs.
    free = height - len(body) - len(below) - 2
    body += [(), *_committed(view, pool, width, max(_CURVE_ROWS[0], min(_CURVE_ROWS[-1], free))), *below]
    summary: Line = (
        Span(figures.size(shown.available), StyleRole.STRONG),
        Span(f" free of {figures.size(shown.total)}", StyleRole.DIM),
    )
    return PanelContent("memory", summary, tuple(body))


def _title(text: str) -> Line:
    return (Span(text, StyleRole.TITLE),)


def _bar(shown: MemoryView, width: int, textures: bool) -> list[Line]:
    """One memory: what it is, the bar, the floors under it, and in words how far free memory is from them."""
    used = shown.total - shown.available
    head = parts(
        [
            (Span(shown.name, StyleRole.TITLE), Span(f" {shown.source}", StyleRole.DIM)),
            (Span(figures.size(used), StyleRole.TEXT), Span(" in use", StyleRole.DIM)),
            (Span(figures.size(shown.available), StyleRole.STRONG), Span(" free", StyleRole.DIM)),
            (Span(figures.size(shown.total), StyleRole.TEXT), Span(" in all", StyleRole.DIM)),
        ],
        width,
        " · ",
    )
    style = panels.floor_style(shown)
    room = shown.available - shown.floor
    above = f"{figures.size(room)} above it" if room >= 0 else f"{figures.size(-room)} short of it"
    floors = parts(
        [
            (Span(f"△ floor {figures.size(shown.floor)}", style), Span(f", {above}", StyleRole.DIM)),
            (Span(f"▲ hard floor {figures.size(shown.hard_floor)}", style),),
            (Span("admission keeps △ free, every commit ▲", StyleRole.FAINT),),
        ],
        width,
        "   ",
    )
    return [head, panels.memory_bar(shown, width, textures=textures), panels.floors(shown, width), floors]


def _legend(shown: MemoryView, width: int, textures: bool) -> Line:
    """The parts of a further device in one line."""
    entries: list[Line] = []
    for part in shown.parts:
        glyph = part.glyph if textures else FILL
        entries.append((Span(f"{glyph} ", part.style), Span(f"{part.label} {figures.size(part.held)}", StyleRole.DIM)))
    style = panels.floor_style(shown)
    entries.append((Span(f"△ floor {figures.size(shown.floor)}", style),))
    return parts(entries, width)


def _table(shown: MemoryView, width: int, textures: bool) -> list[Line]:
    """Each part with its bytes and its share; the sum is the total."""
    rows = [(part.glyph if textures else FILL, part.style, part.label, part.held) for part in shown.parts]
    if shown.unnamed:
        rows.append(("▁" if textures else FILL, StyleRole.FAINT, "unnamed", shown.unnamed))
    rows.append(("·" if textures else "░", StyleRole.DIM, "free", shown.available))
    lines = [_title("parts")]
    for glyph, style, label, held in rows:
        lines.append(_part((Span(f"{glyph} ", style), Span(label)), held, shown.total, width))
    lines.append(_part((Span("= total", StyleRole.STRONG),), shown.total, shown.total, width))
    gap = shown.total - sum(held for *_, held in rows)
    note = "unnamed: in use, but no part accounts for it" if shown.unnamed else ""
    # Less is no news, and would come and go with every snapshot.
    if not shown.unnamed and abs(gap) > _GAP_SHARE * shown.total:
        note = f"the parts are measured one after another: they sum to {figures.size(abs(gap))} " + (
            "less" if gap > 0 else "more"
        )
    return [*lines, *((Span(text, StyleRole.FAINT),) for text in wrap(note, width) if text)]


def _part(name: Line, held: int, total: int, width: int) -> Line:
    size = Span(column(figures.size(held), 11, Align.RIGHT))
    share = Span(column(figures.percent(held, total), 9, Align.RIGHT), StyleRole.DIM)
    bar = stacked((Part(held, StyleRole.DIM, "━"),), total, max(0, width - 38), Part(0, StyleRole.TRACK, "─"))
    return (*fit(name, 16), size, share, *((Span("  "), *bar) if bar else ()))


def _pages(pool: PoolView, width: int) -> list[Line]:
    """Committed pages by slot, then by what they hold."""
    if not pool.enabled:
        return [_title("pages"), (Span("○ the pool is off: each slot's window is allocated whole", StyleRole.DIM),)]
    kinds: list[Line] = [
        (Span(f"{kind} ", StyleRole.DIM), Span(figures.size(held), StyleRole.TEXT if held else StyleRole.DIM))
        for kind, held in pool.kinds
    ]
    counters: list[Line] = [
        (Span("commits ", StyleRole.DIM), Span(figures.count(pool.commits))),
        (Span("releases ", StyleRole.DIM), Span(figures.count(pool.releases))),
        (
            Span("refused ", StyleRole.DIM),
            Span(figures.count(pool.refused), StyleRole.BAD_STRONG if pool.refused else StyleRole.TEXT),
        ),
    ]
    return [
        (*_title("pages by slot"), Span(f"  {figures.size(pool.page)} each", StyleRole.DIM)),
        *panels.slot_rows(pool, width, max(8, len(pool.slots))),
        (Span("by kind  ", StyleRole.DIM), *parts(kinds, width - 9, " · ")),
        parts(counters, width, " · "),
    ]


def _committed(view: ScreenView, pool: PoolView, width: int, rows: int) -> list[Line]:
    past = view.past.committed
    room = max(1, width - _AXIS)
    step = strips.step_for(len(past), room)
    values = shrunk(past, room, step)
    title = parts(
        [
            (*_title("committed over time"),),
            (Span("now ", StyleRole.DIM), Span(figures.size(pool.committed))),
            (Span("peak since the start ", StyleRole.DIM), Span(figures.size(pool.peak))),
            (Span(f"the last {strips.whole_span(len(past))}, {strips.whole_span(step)} a column", StyleRole.FAINT),),
        ],
        width,
        "   ",
    )
    lines: list[Line] = [title]
    for index, line in enumerate(chart(values, room, rows, StyleRole.KV)):
        mark = {0: figures.size(round(max(values, default=0.0))), rows - 1: "0"}.get(index, "")
        lines.append((Span(column(mark, _AXIS - 2, Align.RIGHT), StyleRole.FAINT), Span("  "), *line))
    return lines


def _ladder(shown: MemoryView, width: int) -> list[Line]:
    """What gives memory back when it is short, in the order in which it is asked."""
    lines: list[Line] = [
        parts([_title("pressure ladder"), (Span("asked from the top when memory is short", StyleRole.FAINT),)], width)
    ]
    if not shown.ladder:
        return [*lines, (Span("nothing to ask", StyleRole.DIM),)]
    name = min(2 + max(len(level.name) for level in shown.ladder), max(10, width // 4))
    lines.append(_rung_titles(name))
    for level in shown.ladder:
        lines += _rung(level, name, width)
    return lines


def _rung_titles(name: int) -> Line:
    titles = column("level", name), column("holds", 11, Align.RIGHT), column("asked", 7, Align.RIGHT)
    return (Span("".join((*titles, column("gave", 11, Align.RIGHT), "  last")), StyleRole.FAINT),)


def _rung(level: LadderRow, name: int, width: int) -> list[Line]:
    lead: Line = (
        Span(column(level.name, name), StyleRole.TEXT if level.held or level.reclaims else StyleRole.DIM),
        Span(column(figures.size(level.held), 11, Align.RIGHT), StyleRole.TEXT if level.held else StyleRole.DIM),
        Span(
            column(figures.count(level.reclaims), 7, Align.RIGHT), StyleRole.TEXT if level.reclaims else StyleRole.DIM
        ),
        Span(column(figures.size(level.freed), 11, Align.RIGHT), StyleRole.TEXT if level.freed else StyleRole.DIM),
        Span("  "),
    )
    if level.last_age_s is None:
        return [(*lead, Span("never asked", StyleRole.FAINT))]
    when = f"{figures.span(level.last_age_s)} ago" if level.last_age_s >= 1 else "just now"
    text = f"{when}: {level.last_reason}" if level.last_reason else when
    room = width - width_of(lead)
    if room >= 30:
        first, *rest = wrap(text, room)
        indent = " " * width_of(lead)
        return [(*lead, Span(first, StyleRole.WAIT)), *((Span(indent), Span(more, StyleRole.WAIT)) for more in rest)]
    return [
        (*lead, Span(when[:room], StyleRole.WAIT)),
        *((Span("  "), Span(t, StyleRole.WAIT)) for t in wrap(text, width - 2)),
    ]


def _reserved(pool: PoolView, width: int) -> list[Line]:
    """Reserved addresses: listed apart and in no bar, because they take no memory."""
    if not pool.enabled:
        return []
    text = (
        f"{figures.size(pool.reserved)} of addresses for {figures.plural(len(pool.slots), 'window')}, of which pages "
        f"back {figures.percent(pool.committed, pool.reserved)}; the rest takes no memory ({pool.backend})"
    )
    first, *rest = wrap(text, max(10, width - 10))
    return [
        (*_title("reserved"), Span(f"  {first}", StyleRole.DIM)),
        *((Span(" " * 10), Span(more, StyleRole.DIM)) for more in rest),
    ]
