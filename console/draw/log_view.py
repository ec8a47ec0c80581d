"""The log view: what the engine says."""

from __future__ import annotations

from console.draw.frame import Sheet
from console.screen import ScreenView
from console.spans import Span
from console.tones import Tone
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """The newest lines last."""
    return Sheet("log", body=((Span("○ no line yet", Tone.DIM),),))
