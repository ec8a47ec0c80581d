"""Where the cursor stands and what is scrolled to, as pure functions of the sheet before and after a change."""

from __future__ import annotations

from dataclasses import replace

from console.draw.frame import RowAt, Sheet, scroll_limit
from console.views import ViewState


def settled(before: Sheet | None, after: Sheet, state: ViewState, height: int) -> ViewState:
    """The state on a new sheet in a frame of `height` rows: the cursor stays with its row, and stays in sight.

    Where its row is gone, the one that took its place gets it.
    """
    offset = min(state.offset, scroll_limit(after, height))
    if state.cursor is None:
        return replace(state, offset=offset)
    if state.detail is not None and not after.rows:
        # What was opened is drawn without the list; the cursor waits on its row for the way back.
        return replace(state, offset=offset)
    row = after.row(state.cursor)
    if row is None and after.rows:
        row = after.rows[min(_index(before, state.cursor), len(after.rows) - 1)]
    if row is None:
        return replace(state, cursor=None, offset=offset)
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
    index = -1 if state.cursor is None and step > 0 else _index(sheet, state.cursor)
    row = sheet.rows[max(0, min(len(sheet.rows) - 1, index + step))]
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
    inner = max(1, height - 2 - len(sheet.head))
    offset = min(row.first, max(offset, row.first + row.lines - inner))
    return max(0, min(offset, scroll_limit(sheet, height)))
