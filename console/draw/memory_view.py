"""The memory view: where the memory went."""

from __future__ import annotations

from console.draw import panels
from console.draw.frame import Sheet
from console.screen import ScreenView
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """The bar that adds up, over the pages of the pool."""
    memory, pool = panels.memory(view, width, 12), panels.pool(view, width, 40)
    return Sheet("memory", memory.summary, (*memory.body, (), *pool.body), memory.foot)
