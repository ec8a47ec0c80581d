"""The lanes view: each slot at length."""

from __future__ import annotations

from dataclasses import replace

from console.draw import lanes
from console.draw.frame import RowAt, Sheet
from console.screen import ScreenView
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """Every slot in three rows; the cursor goes from slot to slot."""
    drawn = lanes.lanes(view, width, 3)
    if view.lanes is None or view.loading is not None:
        return drawn
    rows: list[RowAt] = []
    line = 0
    for lane in view.lanes.lanes:
        taken = len(lanes.block(lane, width, 3))
        rows.append(RowAt(str(lane.slot), line, taken))
        line += taken
    return replace(drawn, rows=tuple(rows))
