"""The requests view: what ended, and how."""

from __future__ import annotations

from console.draw.frame import Sheet
from console.screen import ScreenView
from console.spans import Span
from console.tones import Tone
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """The requests that ended."""
    return Sheet("requests", body=((Span("○ nothing ended yet", Tone.DIM),),))
