"""The roles view: each small model beside the engine."""

from __future__ import annotations

from console.draw import panels
from console.draw.frame import Sheet
from console.screen import ScreenView
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """Each role with its state and its reason."""
    return panels.roles(view, width)
