"""The box around a panel: title, right-hand summary, body with its scroll offset, and a foot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, overload

from console.text.spans import Line, Span, StyleRole, fit, width_of

_SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹"
# Border and one space on each side.
SIDE_CELLS = 4


class RowAt(NamedTuple):
    """A row that the cursor can stand on: its id, its first body line, and how many lines it takes."""

    id: str
    first: int
    lines: int = 1


class DrawnAsShown(Sequence[Line]):
    """A body of `length` lines. `draw` makes a line only when it is shown, so that lists of hundreds stay cheap."""

    def __init__(self, length: int, draw: Callable[[int], Line]) -> None:
        self._length = length
        self._draw = draw

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Line, ...]: ...
    def __getitem__(self, index: int | slice) -> Line | tuple[Line, ...]:
        if isinstance(index, slice):
            return tuple(self._draw(line) for line in range(*index.indices(self._length)))
        return self._draw(range(self._length)[index])


def in_blocks(heights: Sequence[int], draw: Callable[[int, int], Line]) -> DrawnAsShown:
    """A body of blocks under one another: `draw` makes the line of a block's index and the line's place in it."""
    starts = list(accumulate(heights, initial=0))

    def line(at: int) -> Line:
        index = bisect_right(starts, at) - 1
        return draw(index, at - starts[index])

    return DrawnAsShown(starts[-1], line)


@dataclass(frozen=True)
class PanelContent:
    """What a panel says: `summary` stands at the right of its title, `foot` in its lower border.

    `head` stays in place over a body that scrolls; `rows` are what the cursor can stand on, top to bottom. A `tail`
    shows its end while no row is chosen, and its last row cannot be: who moves there follows again.
    """

    title: str
    summary: Line = ()
    body: Sequence[Line] = ()
    foot: Line = ()
    head: tuple[Line, ...] = ()
    rows: tuple[RowAt, ...] = ()
    tail: bool = False

    def row(self, name: str | None) -> RowAt | None:
        """The row of that id, where there is one now."""
        return next((row for row in self.rows if row.id == name), None)


@dataclass(frozen=True)
class Frame:
    """How a panel is framed: its size, how far it is scrolled, its digit key, and whether keys go to it.

    `cursor` is the id of the row that is marked.
    """

    width: int
    height: int
    offset: int = 0
    digit: int | None = None
    focused: bool = False
    cursor: str | None = None


def scroll_limit(content: PanelContent, height: int) -> int:
    """The largest offset that still fills the panel."""
    return max(0, len(content.body) - max(0, height - 2 - len(content.head)))


def framed(content: PanelContent, frame: Frame) -> tuple[Line, ...]:
    """Exactly `frame.height` lines of `frame.width` cells."""
    width, height = frame.width, frame.height
    if height < 2 or width < SIDE_CELLS + 1:
        return tuple(fit((), width) for _ in range(height))
    edge = StyleRole.BORDER_FOCUS if frame.focused else StyleRole.BORDER
    offset = min(frame.offset, scroll_limit(content, height))
    head = content.head[: height - 2]
    inner = height - 2 - len(head)
    body = content.body[offset : offset + inner]
    below = len(content.body) - offset - len(body)
    rows = [_top(content, frame, edge), *(_between(line, width, edge, False) for line in head)]
    marked = content.row(frame.cursor)
    for index in range(inner):
        line = body[index] if index < len(body) else ()
        here = marked is not None and 0 <= offset + index - marked.first < marked.lines
        rows.append(_between(line, width, edge, here))
    rows.append(_bottom(content, width, edge, offset, below))
    return tuple(rows)


# Most lines are those of the frame before.
@lru_cache(maxsize=1024)
def _between(line: Line, width: int, edge: StyleRole, marked: bool) -> Line:
    side = Span("│", edge)
    return (side, Span("▌", StyleRole.KEY) if marked else Span(" "), *fit(line, width - SIDE_CELLS), Span(" "), side)


def _top(content: PanelContent, frame: Frame, edge: StyleRole) -> Line:
    digit = _SUPERSCRIPT[frame.digit] if frame.digit is not None else ""
    marker = "▸" if frame.focused else ""
    name: Line = (Span(" "), Span(digit, StyleRole.KEY), Span(f"{marker}{content.title}", StyleRole.TITLE), Span(" "))
    room = frame.width - 4 - width_of(name)
    summary = content.summary
    while summary and width_of(summary) + 2 > room:
        summary = summary[:-1]
    right: Line = (Span(" "), *summary, Span(" ")) if summary else ()
    gap = room - width_of(right)
    if gap < 0:
        return (*fit((Span("╭─", edge), *name, Span("─" * frame.width, edge)), frame.width - 1), Span("╮", edge))
    return (Span("╭─", edge), *name, Span("─" * gap, edge), *right, Span("─╮", edge))


def _bottom(content: PanelContent, width: int, edge: StyleRole, offset: int, below: int) -> Line:
    more = ""
    if below or offset:
        more = (
            " "
            + " ".join(part for part in (f"▲ {offset}" if offset else "", f"▼ {below} more" if below else "") if part)
            + " "
        )
    if width_of((Span(more),)) > width - 4:
        more = ""
    room = width - 4 - width_of((Span(more),))
    foot: Line = (Span(" "), *content.foot, Span(" ")) if content.foot else ()
    while foot and width_of(foot) > room:
        foot = (*foot[:-2], foot[-1]) if len(foot) > 3 else ()
    gap = max(0, room - width_of(foot))
    return (Span("╰─", edge), Span(more, StyleRole.WAIT), Span("─" * gap, edge), *foot, Span("─╯", edge))
