"""The panels under the lanes: the KV pool, the memory that adds up, the roles, and the queue with its reasons."""

from __future__ import annotations

from functools import lru_cache

from console import figures
from console.bars import FILL, TRACK, Part, stacked
from console.draw.frame import Sheet, in_blocks
from console.parts.queue import QueueView, Why
from console.screen import MemoryView, PoolView, RoleView, ScreenView
from console.spans import Align, Line, Span, column, parts, spread, width_of, wrap
from console.tones import Tone


def pool(view: ScreenView, width: int, height: int) -> Sheet:
    """Committed pages by slot and by kind; what is only reserved is said apart, since it is no memory."""
    shown = view.pool
    if shown is None:
        return Sheet("kv pool")
    if view.loading is not None:
        return Sheet("kv pool", body=((Span("reserved after loading", Tone.DIM),),))
    if not shown.enabled:
        return Sheet("kv pool", body=((Span("○ off: each slot's window is allocated whole", Tone.DIM),),))
    summary: Line = (
        Span(figures.plural(shown.pages, "page"), Tone.TEXT),
        Span(f" · {figures.size(shown.committed)}", Tone.STRONG),
    )
    kinds = [
        (Span(f"{kind} ", Tone.DIM), Span(figures.size(held), Tone.TEXT if held else Tone.DIM))
        for kind, held in shown.kinds
    ]
    counters: list[Line] = [
        (Span("commits ", Tone.DIM), Span(figures.count(shown.commits), Tone.TEXT)),
        (Span("releases ", Tone.DIM), Span(figures.count(shown.releases), Tone.TEXT)),
        (
            Span("refused ", Tone.DIM),
            Span(figures.count(shown.refused), Tone.BAD_STRONG if shown.refused else Tone.TEXT),
        ),
    ]
    apart: list[Line] = [
        (Span("peak ", Tone.DIM), Span(figures.size(shown.peak), Tone.TEXT)),
        (Span("of the reserved range ", Tone.DIM), Span(figures.percent(shown.committed, shown.reserved), Tone.TEXT)),
    ]
    if shown.refused:
        counters.reverse()
    if height >= len(shown.slots) + 3:
        tail = [parts(apart, width, " · "), parts(kinds, width, " · "), parts(counters, width, " · ")]
    else:
        tail = [parts([*apart[:1], *kinds], width, " · "), parts(counters, width, " · ")]
    rows = slot_rows(shown, width, max(1, height - len(tail)))
    foot: Line = (
        Span(f"reserved {figures.size(shown.reserved)} of addresses", Tone.DIM),
        Span(f", {figures.size(shown.page)} a page", Tone.DIM),
        Span(f", {shown.backend}", Tone.DIM),
    )
    return Sheet("kv pool", summary, (*rows, *tail), foot)


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
            bar = stacked((Part(slot.share, Tone.KV),), 1.0, max(3, cell - 3 - len(figure)), Part(0, Tone.TRACK, TRACK))
            tone = Tone.TEXT if slot.held else Tone.DIM
            line += [Span(f"{slot.slot:>2} ", tone), *bar, Span(figure, tone)]
        rows.append(tuple(line))
    return rows


def memory(view: ScreenView, width: int, height: int) -> Sheet:
    """One bar of all the memory, the floors marked under it, and a legend whose sizes add up to the total."""
    shown = view.memory
    if shown is None:
        return Sheet("memory")
    summary: Line = (
        Span(figures.size(shown.available), Tone.STRONG),
        Span(f" free of {figures.size(shown.total)}", Tone.DIM),
        Span(f" · {shown.source}", Tone.DIM),
    )
    bar = memory_bar(shown, width, textures=view.textures)
    legend = _legend(shown, width, max(1, height - 2), view.textures)
    # Floors are set once the model is loaded.
    marks = [] if view.loading is not None else [floors(shown, width)]
    body = [bar, *marks, *legend, *((Span(text, Tone.DIM),) for text in shown.others)]
    body = [bar, *body[1 + len(marks) :]] if len(body) > height > 1 else body
    return Sheet("memory", summary, tuple(body), _foot(shown) if marks else ())


def memory_bar(shown: MemoryView, width: int, *, textures: bool) -> Line:
    """All of the memory as one bar: the parts in use, what no part names, and what is free."""
    filled = [Part(part.held, part.tone, part.glyph if textures else "█") for part in shown.parts]
    if shown.unnamed:
        filled.append(Part(shown.unnamed, Tone.FAINT, "▁"))
    return stacked(filled, shown.total, width, Part(0, Tone.FREE, "·" if textures else "░"))


def floors(shown: MemoryView, width: int) -> Line:
    """Marks under the bar: use that reaches a mark leaves just that floor free."""

    def place(floor: int) -> int:
        return min(width - 1, max(0, round((shown.total - floor) / shown.total * width))) if shown.total else 0

    soft = min(place(shown.floor), width - 2)
    hard = max(place(shown.hard_floor), soft + 1)
    tone = floor_tone(shown)
    return (Span(" " * soft), Span("△", tone), Span(" " * (hard - soft - 1)), Span("▲", tone))


def _foot(shown: MemoryView) -> Line:
    """What the floor marks stand for."""
    tone = floor_tone(shown)
    return (
        Span(f"△ floor {figures.size(shown.floor)}", tone),
        Span(f"  ▲ hard {figures.size(shown.hard_floor)}", tone),
    )


def floor_tone(shown: MemoryView) -> Tone:
    if shown.available <= shown.hard_floor:
        return Tone.BAD_STRONG
    return Tone.WAIT_STRONG if shown.available <= shown.floor else Tone.DIM


def _legend(shown: MemoryView, width: int, room: int, textures: bool) -> list[Line]:
    entries: list[tuple[str, Tone, str, int]] = [
        (part.glyph if textures else FILL, part.tone, part.label, part.held) for part in shown.parts
    ]
    if shown.unnamed:
        entries.append(("▁" if textures else FILL, Tone.FAINT, "unnamed", shown.unnamed))
    entries.append(("·" if textures else "░", Tone.DIM, "free", shown.available))
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
            glyph, tone, label, held = entries[index]
            if place:
                line.append(Span("  "))
            figure = named(held)
            line += [
                Span(f"{glyph} ", tone),
                Span(column(label, cell - 1 - len(glyph) - len(figure)), Tone.DIM),
                Span(figure, Tone.TEXT),
            ]
        rows.append(tuple(line))
    return rows


def roles(view: ScreenView, width: int) -> Sheet:
    """Each small model beside the engine: its state, its claim and why, in words."""
    if view.lanes is None:
        return Sheet("roles")
    if view.loading is not None:
        return Sheet("roles", body=((Span("planned after loading", Tone.DIM),),))
    if not view.roles:
        return Sheet("roles", body=((Span("none planned", Tone.DIM),),))
    loaded = sum(role.word.word == "loaded" for role in view.roles)
    body: list[Line] = []
    for role in view.roles:
        body += _role(role, width)
    return Sheet("roles", (Span(f"{loaded} of {len(view.roles)} loaded", Tone.DIM),), tuple(body))


def _role(role: RoleView, width: int) -> list[Line]:
    name: Line = (
        Span(f"{role.word.glyph} ", role.word.tone),
        Span(f"{role.name} ", Tone.STRONG),
        Span(role.word.word, role.word.tone),
    )
    extra: list[Line] = [(Span(role.claim, Tone.TEXT),)]
    if role.reloads:
        extra.append((Span(f"{figures.plural(role.reloads, 'reload')}", Tone.DIM),))
    extra.append((Span(role.since, Tone.DIM),))
    lines = [spread(name, parts(extra, max(0, width - width_of(name) - 1)), width)]
    lines += [(Span(f"  {text}", Tone.DIM),) for text in wrap(role.reason, width - 2) if role.reason]
    return lines


def queue(view: ScreenView, width: int) -> Sheet:
    """Each waiting request, oldest first as the engine lists them, with the whole sentence that says why."""
    if view.lanes is None:
        return Sheet("queue")
    if not view.queue_total:
        return Sheet("queue", body=((Span("○ nothing waits", Tone.DIM),),))
    if not view.queue:
        return Sheet("queue", body=((Span(f"none of {view.queue_total} matches the filter", Tone.DIM),),))

    def line(index: int, part: int) -> Line:
        entry = view.queue[index]
        return _asker(entry, width) if part == 0 else _sentence(entry.why, width)[part - 1]

    heights = [1 + len(_sentence(why, width)) for why in view.queue.whys()]
    shown = f"{len(view.queue)} of {view.queue_total}" if len(view.queue) != view.queue_total else str(view.queue_total)
    return Sheet("queue", (Span(f"{shown} waiting", Tone.WAIT_STRONG),), in_blocks(heights, line))


def _asker(entry: QueueView, width: int) -> Line:
    left: Line = (
        Span(f"{entry.word.glyph} ", entry.word.tone),
        Span(f"{entry.client} ", Tone.STRONG),
        Span(entry.id, Tone.DIM),
    )
    asks: Line = (Span(entry.prompt, Tone.TEXT),)
    right = parts([asks, (Span(f"{entry.since:>6}", Tone.WAIT),)], width // 2)
    return spread(left, (Span(" "), *right), width)


# Most of a long queue says the same few sentences.
@lru_cache(maxsize=1024)
def _sentence(why: Why, width: int) -> tuple[Line, ...]:
    text = f"{why.word.word}: {why.reason}" if why.reason else why.word.word
    first, *rest = wrap(text, width - 2) or [""]
    state = first[: len(why.word.word)]
    return (
        (Span(f"  {state}", Tone.WAIT), Span(first[len(state) :])),
        *((Span(f"  {part}"),) for part in rest),
    )
