"""The panels under the lanes: the KV pool, the memory that adds up, the roles, and the queue with its reasons."""

from __future__ import annotations

from functools import lru_cache

from console.draw.bars import FILL, TRACK, Part, stacked
from console.draw.frame import PanelContent, in_blocks
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, column, parts, spread, width_of, wrap
from console.viewmodel.queue import QueueView, WaitReason
from console.viewmodel.rows import MemoryView, PoolView, RoleView, ScreenView


def pool(view: ScreenView, width: int, height: int) -> PanelContent:
    """Committed pages by slot and by kind. Reserved addresses stand apart, because they take no memory."""
    shown = view.pool
    if shown is None:
        return PanelContent("kv pool")
    if view.loading is not None:
        return PanelContent("kv pool", body=((Span("reserved after loading", StyleRole.DIM),),))
    if not shown.enabled:
        return PanelContent("kv pool", body=((Span("○ off: each slot's window is allocated whole", StyleRole.DIM),),))
    summary: Line = (
        Span(figures.plural(shown.pages, "page"), StyleRole.TEXT),
        Span(f" · {figures.size(shown.committed)}", StyleRole.STRONG),
    )
    kinds = [
        (Span(f"{kind} ", StyleRole.DIM), Span(figures.size(held), StyleRole.TEXT if held else StyleRole.DIM))
        for kind, held in shown.kinds
    ]
    counters: list[Line] = [
        (Span("commits ", StyleRole.DIM), Span(figures.count(shown.commits), StyleRole.TEXT)),
        (Span("releases ", StyleRole.DIM), Span(figures.count(shown.releases), StyleRole.TEXT)),
        (
            Span("refused ", StyleRole.DIM),
            Span(figures.count(shown.refused), StyleRole.BAD_STRONG if shown.refused else StyleRole.TEXT),
        ),
    ]
    apart: list[Line] = [
        (Span("peak ", StyleRole.DIM), Span(figures.size(shown.peak), StyleRole.TEXT)),
        (
            Span("of the reserved range ", StyleRole.DIM),
            Span(figures.percent(shown.committed, shown.reserved), StyleRole.TEXT),
        ),
    ]
    if shown.refused:
        counters.reverse()
    if height >= len(shown.slots) + 3:
        tail = [parts(apart, width, " · "), parts(kinds, width, " · "), parts(counters, width, " · ")]
    else:
        tail = [parts([*apart[:1], *kinds], width, " · "), parts(counters, width, " · ")]
    rows = slot_rows(shown, width, max(1, height - len(tail)))
    foot: Line = (
        Span(f"reserved {figures.size(shown.reserved)} of addresses", StyleRole.DIM),
        Span(f", {figures.size(shown.page)} a page", StyleRole.DIM),
        Span(f", {shown.backend}", StyleRole.DIM),
    )
    return PanelContent("kv pool", summary, (*rows, *tail), foot)


def slot_rows(shown: PoolView, width: int, room: int) -> list[Line]:
    """Committed pages: a bar a slot, in as many columns as the rows there are make necessary and the width allows."""
    count = len(shown.slots)
    across = max(1, min(-(-count // room), max(1, (width + 2) // 19)))
    cell = (width - 2 * (across - 1)) // across
    down = -(-count // across) if count else 0
    rows: list[Line] = []
    for row in range(down):
        line: list[Span] = []
        for place in range(across):
            index = place * down + row
            if index >= count:
                break
            if place:
                line.append(Span("  "))
            slot = shown.slots[index]
            roomy = cell >= 34
            figure = f" {column(f'{figures.brief(slot.pages)} pg', 8, Align.RIGHT)}"
            if roomy:
                figure += column(figures.size(slot.held), 10, Align.RIGHT)
            bar = stacked(
                (Part(slot.share, StyleRole.KV),), 1.0, max(3, cell - 3 - len(figure)), Part(0, StyleRole.TRACK, TRACK)
            )
            style = StyleRole.TEXT if slot.held else StyleRole.DIM
            line += [Span(f"{slot.slot:>2} ", style), *bar, Span(figure, style)]
        rows.append(tuple(line))
    return rows


def memory(view: ScreenView, width: int, height: int) -> PanelContent:
    """One bar of all the memory, the floors marked under it, and a legend whose sizes add up to the total."""
    shown = view.memory
    if shown is None:
        return PanelContent("memory")
    summary: Line = (
        Span(figures.size(shown.available), StyleRole.STRONG),
        Span(f" free of {figures.size(shown.total)}", StyleRole.DIM),
        Span(f" · {shown.source}", StyleRole.DIM),
    )
    bar = memory_bar(shown, width, textures=view.textures)
    legend = _legend(shown, width, max(1, height - 2), view.textures)
    # Floors are set once the model is loaded.
    marks = [] if view.loading is not None else [floors(shown, width)]
    body = [bar, *marks, *legend, *((Span(text, StyleRole.DIM),) for text in shown.others)]
    body = [bar, *body[1 + len(marks) :]] if len(body) > height > 1 else body
    return PanelContent("memory", summary, tuple(body), _foot(shown) if marks else ())


def memory_bar(shown: MemoryView, width: int, *, textures: bool) -> Line:
    """All of the memory as one bar: the parts in use, what no part names, and what is free."""
    filled = [Part(part.held, part.style, part.glyph if textures else "█") for part in shown.parts]
    if shown.unnamed:
        filled.append(Part(shown.unnamed, StyleRole.FAINT, "▁"))
    return stacked(filled, shown.total, width, Part(0, StyleRole.FREE, "·" if textures else "░"))


def floors(shown: MemoryView, width: int) -> Line:
    """Marks under the bar: use that reaches a mark leaves just that floor free."""

    def place(floor: int) -> int:
        return min(width - 1, max(0, round((shown.total - floor) / shown.total * width))) if shown.total else 0

    soft = min(place(shown.floor), width - 2)
    hard = max(place(shown.hard_floor), soft + 1)
    style = floor_style(shown)
    return (Span(" " * soft), Span("△", style), Span(" " * (hard - soft - 1)), Span("▲", style))


def _foot(shown: MemoryView) -> Line:
    """What the floor marks stand for."""
    style = floor_style(shown)
    return (
        Span(f"△ floor {figures.size(shown.floor)}", style),
        Span(f"  ▲ hard {figures.size(shown.hard_floor)}", style),
    )


def floor_style(shown: MemoryView) -> StyleRole:
    if shown.available <= shown.hard_floor:
        return StyleRole.BAD_STRONG
    return StyleRole.WAIT_STRONG if shown.available <= shown.floor else StyleRole.DIM


def _legend(shown: MemoryView, width: int, room: int, textures: bool) -> list[Line]:
    entries: list[tuple[str, StyleRole, str, int]] = [
        (part.glyph if textures else FILL, part.style, part.label, part.held) for part in shown.parts
    ]
    if shown.unnamed:
        entries.append(("▁" if textures else FILL, StyleRole.FAINT, "unnamed", shown.unnamed))
    entries.append(("·" if textures else "░", StyleRole.DIM, "free", shown.available))
    across = max(1, min(3 if width >= 66 else 2, width // 18))
    while across > 1 and -(-len(entries) // (across - 1)) <= room and width // across < 24:
        across -= 1
    down = -(-len(entries) // across)
    cell = (width - 2 * (across - 1)) // across
    named = figures.size if cell >= 22 else figures.short_size
    rows: list[Line] = []
    for row in range(down):
        line: list[Span] = []
        for place in range(across):
            index = place * down + row
            if index >= len(entries):
                break
            glyph, style, label, held = entries[index]
            if place:
                line.append(Span("  "))
            figure = named(held)
            line += [
                Span(f"{glyph} ", style),
                Span(column(label, cell - 1 - len(glyph) - len(figure)), StyleRole.DIM),
                Span(figure, StyleRole.TEXT),
            ]
        rows.append(tuple(line))
    return rows


def roles(view: ScreenView, width: int) -> PanelContent:
    """Each small model beside the engine: its state, its claim and why, in words."""
    if view.lanes is None:
        return PanelContent("roles")
    if view.loading is not None:
        return PanelContent("roles", body=((Span("planned after loading", StyleRole.DIM),),))
    if not view.roles:
        return PanelContent("roles", body=((Span("none planned", StyleRole.DIM),),))
    loaded = sum(role.label.text == "loaded" for role in view.roles)
    body: list[Line] = []
    for role in view.roles:
        body += _role(role, width)
    return PanelContent("roles", (Span(f"{loaded} of {len(view.roles)} loaded", StyleRole.DIM),), tuple(body))


def _role(role: RoleView, width: int) -> list[Line]:
    name: Line = (
        Span(f"{role.label.glyph} ", role.label.style),
        Span(f"{role.name} ", StyleRole.STRONG),
        Span(role.label.text, role.label.style),
    )
    extra: list[Line] = [(Span(role.claim, StyleRole.TEXT),)]
    if role.reloads:
        extra.append((Span(f"{figures.plural(role.reloads, 'reload')}", StyleRole.DIM),))
    extra.append((Span(role.since, StyleRole.DIM),))
    lines = [spread(name, parts(extra, max(0, width - width_of(name) - 1)), width)]
    lines += [(Span(f"  {text}", StyleRole.DIM),) for text in wrap(role.reason, width - 2) if role.reason]
    return lines


def queue(view: ScreenView, width: int) -> PanelContent:
    """Each waiting request, oldest first as the engine lists them, with the whole sentence that says why."""
    if view.lanes is None:
        return PanelContent("queue")
    if not view.queue_total:
        return PanelContent("queue", body=((Span("○ nothing waits", StyleRole.DIM),),))
    if not view.queue:
        return PanelContent("queue", body=((Span(f"none of {view.queue_total} matches the filter", StyleRole.DIM),),))

    def line(index: int, part: int) -> Line:
        entry = view.queue[index]
        return _asker(entry, width) if part == 0 else _sentence(entry.why, width)[part - 1]

    heights = [1 + len(_sentence(why, width)) for why in view.queue.whys()]
    shown = f"{len(view.queue)} of {view.queue_total}" if len(view.queue) != view.queue_total else str(view.queue_total)
    return PanelContent("queue", (Span(f"{shown} waiting", StyleRole.WAIT_STRONG),), in_blocks(heights, line))


def _asker(entry: QueueView, width: int) -> Line:
    left: Line = (
        Span(f"{entry.label.glyph} ", entry.label.style),
        Span(f"{entry.client} ", StyleRole.STRONG),
        Span(entry.id, StyleRole.DIM),
    )
    asks: Line = (Span(entry.prompt, StyleRole.TEXT),)
    right = parts([asks, (Span(f"{entry.since:>6}", StyleRole.WAIT),)], width // 2)
    return spread(left, (Span(" "), *right), width)


# Most of a long queue says the same few sentences.
@lru_cache(maxsize=1024)
def _sentence(why: WaitReason, width: int) -> tuple[Line, ...]:
    text = f"{why.label.text}: {why.reason}" if why.reason else why.label.text
    first, *rest = wrap(text, width - 2) or [""]
    state = first[: len(why.label.text)]
    return (
        (Span(f"  {state}", StyleRole.WAIT), Span(first[len(state) :])),
        *((Span(f"  {part}"),) for part in rest),
    )
