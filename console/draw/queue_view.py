"""The queue view: each waiting request with its reason and its age."""

from __future__ import annotations

from console.draw import panels
from console.draw.frame import Sheet
from console.screen import ScreenView
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """Each waiting request, oldest first."""
    return panels.queue(view, width)
