"""Where the cursor stands and what is scrolled to, as pure functions of the content before and after a change."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from console.draw.frame import PanelContent, RowAt, scroll_limit
from console.keys.views import ViewState


def settled(before: PanelContent | None, after: PanelContent, state: ViewState, height: int) -> ViewState:
    """The state on a new content in a frame of `height` rows: the cursor stays with its row, and stays in sight.

    Where its row is gone, the one that took its place gets it.
    """
    limit = scroll_limit(after, height)
    offset = min(state.offset, limit)
    if state.cursor is None:
        return replace(state, offset=limit if after.tail else offset)
    if state.detail is not None and not after.rows:
        # The row that was opened waits behind its detail.
        return replace(state, offset=offset)
    row = after.row(state.cursor)
    if row is None and after.rows:
        row = after.rows[min(_index(before, state.cursor), len(after.rows) - 1)]
    if row is None:
        return replace(state, cursor=None, offset=offset)
    if after.tail and row is after.rows[-1]:
        return replace(state, cursor=None, offset=limit)
    was = before.row(state.cursor) if before is not None else None
    if was is not None and was.first >= state.offset:
        # What comes or goes above must not move the row under a person's eyes.
        offset = state.offset + row.first - was.first
    return replace(state, cursor=row.id, offset=_in_sight(after, row, offset, height))


def moved(content: PanelContent, state: ViewState, step: int, height: int) -> ViewState:
    """The cursor `step` rows on, held at the ends; where nothing can be chosen, the body scrolls by as many lines."""
    if not content.rows:
        limit = scroll_limit(content, height)
        return replace(state, offset=max(0, min(limit, state.offset + step)))
    return _on(content, state, _start(content, state, step) + step, height)


def paged(content: PanelContent, state: ViewState, pages: int, height: int) -> ViewState:
    """The cursor on the row that lies `pages` screens of lines away, so that nothing between is skipped."""
    lines = pages * max(1, _inner(content, height) - 1)
    if not content.rows:
        return moved(content, state, lines, height)
    index = max(0, _start(content, state, pages))
    wanted = content.rows[index].first + lines
    reached = max(0, bisect_right(content.rows, wanted, key=lambda row: row.first) - 1)
    # A row taller than the screen must not hold the cursor.
    return _on(content, state, reached if reached != index else index + pages, height)


def _start(content: PanelContent, state: ViewState, step: int) -> int:
    """Where a move begins: before anything was chosen at the edge that it leads away from."""
    if state.cursor is not None:
        return _index(content, state.cursor)
    if content.tail:
        return len(content.rows) - 1
    return -1 if step > 0 else 0


def _on(content: PanelContent, state: ViewState, index: int, height: int) -> ViewState:
    last = len(content.rows) - 1
    row = content.rows[max(0, min(last, index))]
    if content.tail and index >= last:
        return replace(state, cursor=None, offset=scroll_limit(content, height))
    return replace(state, cursor=row.id, offset=_in_sight(content, row, state.offset, height))


def at_line(content: PanelContent, state: ViewState, line: int) -> ViewState:
    """The cursor on the row that covers body line `line` as scrolled; unchanged where none does."""
    wanted = line + state.offset
    name = next((row.id for row in content.rows if row.first <= wanted < row.first + row.lines), state.cursor)
    return replace(state, cursor=name)


def _index(content: PanelContent | None, name: str | None) -> int:
    rows = content.rows if content is not None else ()
    return next((index for index, row in enumerate(rows) if row.id == name), 0)


def _in_sight(content: PanelContent, row: RowAt, offset: int, height: int) -> int:
    offset = min(row.first, max(offset, row.first + row.lines - _inner(content, height)))
    return max(0, min(offset, scroll_limit(content, height)))


def _inner(content: PanelContent, height: int) -> int:
    return max(1, height - 2 - len(content.head))
