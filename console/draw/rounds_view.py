"""The rounds view: how many slots ran together."""

from __future__ import annotations

from console import figures
from console.draw.frame import Sheet
from console.screen import ScreenView
from console.spans import Span
from console.tones import Tone
from console.views import ViewState


def sheet(view: ScreenView, state: ViewState, width: int, height: int) -> Sheet:
    """How many rounds ran with so many slots together."""
    rounds = view.lanes.rounds if view.lanes else ()
    body = tuple(
        (Span(f"{slots:>3} slots  ", Tone.TEXT), Span(figures.plural(number, "round"), Tone.DIM))
        for slots, number in rounds
    )
    return Sheet("rounds", body=body or ((Span("○ no round yet", Tone.DIM),),))
