"""Bars and sparklines as spans: pure functions of shares and a width in cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from console.text.spans import Line, Span, StyleRole

# Squares leave a gap between rows, so that bars under one another stay apart.
FILL = "■"
AHEAD = "□"
TRACK = "·"
_TICKS = "▁▂▃▄▅▆▇█"
_COLUMN = " " + _TICKS


@dataclass(frozen=True)
class Part:
    """One fill of a stacked bar: its amount, its style and the glyph that tells it apart without colour."""

    amount: float
    style: StyleRole
    glyph: str = FILL


def progress(done: float, total: float, width: int, style: StyleRole) -> Line:
    """A thin bar, heavy where done, light where not. It shows a cell once begun, and is full only when finished."""
    if width <= 0:
        return ()
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    filled = round(share * width)
    if share > 0:
        filled = max(1, filled)
    if share < 1:
        filled = min(filled, max(width - 1, 1))
    return (Span("━" * filled, style), Span("─" * (width - filled), StyleRole.TRACK))


def stacked(parts: Sequence[Part], total: float, width: int, rest: Part) -> Line:
    """Parts side by side over a track that stands for `total`; `rest` gives the track's style and glyph.

    Cell edges are rounded cumulatively, so that the bar as a whole is right to half a cell; a part that is not
    nothing shows at least one cell while there is room.
    """
    if width <= 0:
        return ()
    spans: list[Span] = []
    used = 0
    amount = 0.0
    for part in parts:
        amount += part.amount
        edge = min(width, round(amount / total * width)) if total > 0 else 0
        if part.amount > 0 and edge <= used:
            edge = min(width, used + 1)
        if edge > used:
            spans.append(Span(part.glyph * (edge - used), part.style))
            used = edge
    if used < width:
        spans.append(Span(rest.glyph * (width - used), rest.style))
    return tuple(spans)


def sparkline(values: Sequence[float], width: int, style: StyleRole) -> Line:
    """The latest `width` values as eighths of a cell, newest at the right; zero is a dim base line.

    A full cell stands for a little more than the largest value shown, so that a steady rate is no solid block.
    """
    if width <= 0:
        return ()
    latest = values[-width:]
    shown = [0.0] * (width - len(latest)) + list(latest)
    ceiling = max(shown) * 1.3
    spans: list[Span] = []
    for there, run in groupby(shown, key=(0.0).__lt__):
        if there:
            spans.append(Span("".join([_TICKS[min(7, int(value / ceiling * 8))] for value in run]), style))
        else:
            spans.append(Span("▁" * len(list(run)), StyleRole.TRACK))
    return tuple(spans)


def shrunk(values: Sequence[float], width: int, step: int) -> tuple[float, ...]:
    """The latest values as at most `width` means of `step` values each, oldest first."""
    shown = values[-width * step :]
    first = len(shown) % step
    groups = ([shown[:first]] if first else []) + [shown[at : at + step] for at in range(first, len(shown), step)]
    return tuple(sum(group) / len(group) for group in groups)[-width:]


def chart(values: Sequence[float], width: int, height: int, style: StyleRole) -> tuple[Line, ...]:
    """The latest `width` values as columns `height` rows tall, newest at the right, the largest filling its column.

    Zero is a dim base line; a value that is not nothing shows an eighth of a cell at least.
    """
    shown = values[-width:]
    most = max(shown, default=0.0)
    scale = height * 8 / most if most > 0 else 0.0
    eighths = [0] * (width - len(shown)) + [max(1, round(value * scale)) if value > 0 else 0 for value in shown]
    rows: list[Line] = []
    for base in range(8 * (height - 1), -1, -8):
        ticks = "".join([_COLUMN[max(0, min(8, level - base))] for level in eighths])
        rows.append((Span(ticks, style),) if base else _on_ground(ticks, style))
    return tuple(rows)


def _on_ground(ticks: str, style: StyleRole) -> Line:
    runs = groupby(ticks, key=" ".__ne__)
    return tuple(
        Span(text, style) if there else Span("▁" * len(text), StyleRole.TRACK)
        for there, text in ((there, "".join(run)) for there, run in runs)
    )
