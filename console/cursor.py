"""Where the cursor stands and what is scrolled to, as pure functions of the sheet before and after a change."""

from __future__ import annotations

from bisect import bisect_right

from msgspec.structs import replace

from console.draw.frame import RowAt, Sheet, scroll_limit
from console.views import ViewState


def settled(before: Sheet | None, after: Sheet, state: ViewState, height: int) -> ViewState:
    """The state on a new sheet in a frame of `height` rows: the cursor stays with its row, and stays in sight.

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


def moved(sheet: Sheet, state: ViewState, step: int, height: int) -> ViewState:
    """The cursor `step` rows on, held at the ends; where nothing can be chosen, the body scrolls by as many lines."""
    if not sheet.rows:
        limit = scroll_limit(sheet, height)
        return replace(state, offset=max(0, min(limit, state.offset + step)))
    return _on(sheet, state, _start(sheet, state, step) + step, height)


def paged(sheet: Sheet, state: ViewState, pages: int, height: int) -> ViewState:
    """The cursor on the row that lies `pages` screens of lines away, so that nothing between is skipped."""
    lines = pages * max(1, _inner(sheet, height) - 1)
    if not sheet.rows:
        return moved(sheet, state, lines, height)
    index = max(0, _start(sheet, state, pages))
    wanted = sheet.rows[index].first + lines
    reached = max(0, bisect_right(sheet.rows, wanted, key=lambda row: row.first) - 1)
    # A row taller than the screen must not hold the cursor.
    return _on(sheet, state, reached if reached != index else index + pages, height)


def _start(sheet: Sheet, state: ViewState, step: int) -> int:
    """Where a move begins: before anything was chosen at the edge that it leads away from."""
    if state.cursor is not None:
        return _index(sheet, state.cursor)
    if sheet.tail:
        return len(sheet.rows) - 1
    return -1 if step > 0 else 0


def _on(sheet: Sheet, state: ViewState, index: int, height: int) -> ViewState:
    last = len(sheet.rows) - 1
    row = sheet.rows[max(0, min(last, index))]
    if sheet.tail and index >= last:
        return replace(state, cursor=None, offset=scroll_limit(sheet, height))
    return replace(state, cursor=row.id, offset=_in_sight(sheet, row, state.offset, height))


def at_line(sheet: Sheet, state: ViewState, line: int) -> ViewState:
    """The cursor on the row that covers body line `line` as scrolled; unchanged where none does."""
    wanted = line + state.offset
    name = next((row.id for row in sheet.rows if row.first <= wanted < row.first + row.lines), state.cursor)
    return replace(state, cursor=name)


def _index(sheet: Sheet | None, name: str | None) -> int:
    rows = sheet.rows if sheet is not None else ()
    return next((index for index, row in enumerate(rows) if row.id == name), 0)


def _in_sight(sheet: Sheet, row: RowAt, offset: int, height: int) -> int:
    offset = min(row.first, max(offset, row.first + row.lines - _inner(sheet, height)))
    return max(0, min(offset, scroll_limit(sheet, height)))


def _inner(sheet: Sheet, height: int) -> int:
    return max(1, height - 2 - len(sheet.head))
