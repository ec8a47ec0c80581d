"""The two lines at the top: what runs, how it is, how fresh this is."""

from __future__ import annotations

from console import figures
from console.bars import sparkline
from console.screen import ScreenView
from console.spans import Line, Span, clip, fit, parts, spread, width_of
from console.tones import Tone
from console.words import RECORDING_WORD


def header(view: ScreenView, width: int) -> tuple[Line, ...]:
    """Two lines of `width` cells."""
    return (_identity(view, width), _throughput(view, width))


def _identity(view: ScreenView, width: int) -> Line:
    head = view.header
    fresh = Tone.BAR_BAD if head.stale else Tone.BAR_WAIT if head.paused else Tone.BAR_DIM
    glyph = "✖" if head.stale else "‖" if head.paused else "◉"
    right: Line = (
        Span(f"{head.status.glyph} {head.status.word}", head.status.tone),
        Span("   ", Tone.BAR_TEXT),
        Span(clip(f"{glyph} {head.freshness}", max(8, width // 2)), fresh),
        Span(" ", Tone.BAR_TEXT),
    )
    if head.recording:
        sign = RECORDING_WORD
        right = (Span(f"{sign.glyph} {sign.word}", sign.tone), Span("   ", Tone.BAR_TEXT), *right)
    if head.uptime and width >= 72:
        right = (Span(f"up {head.uptime}   ", Tone.BAR_DIM), *right)
    brand: Line = (Span(" ◆ tandem  ", Tone.BAR_BRAND),)
    room = width - width_of(right) - width_of(brand) - 2
    if head.place:
        brand = (*brand, Span(f"{head.place}  ", Tone.BAR_READ))
        room -= len(head.place) + 2
    model = clip(head.model, max(0, room))
    left = (*brand, Span(model, Tone.BAR_STRONG))
    if room - len(model) > len(head.detail) + 2:
        left = (*left, Span(f"  {head.detail}", Tone.BAR_DIM))
    return spread(left, right, width, Tone.BAR_TEXT)


def _throughput(view: ScreenView, width: int) -> Line:
    head = view.header
    if view.lanes is None:
        return fit((Span("   no snapshot yet", Tone.BAR_DIM),), width, Tone.BAR_TEXT)
    speed = figures.NONE if head.stale else figures.rate(head.tok_s)
    speed_tone = Tone.BAR_GOOD if head.tok_s > 0 and not head.stale else Tone.BAR_DIM
    curve: Line = ()
    if not head.stale:
        curve = tuple(
            Span(span.text, Tone.BAR_DIM if span.tone is Tone.TRACK else Tone.BAR_GOOD)
            for span in sparkline(head.rates, min(60, max(8, width // 4 - 3)), Tone.GOOD)
        )
    waiting = Tone.BAR_WAIT if head.waiting and not head.stale else Tone.BAR_DIM
    running = Tone.BAR_GOOD if head.running and not head.stale else Tone.BAR_DIM
    fixed: Line = (
        Span(f" {speed:>7} ", speed_tone),
        Span("tok/s ", Tone.BAR_DIM),
        *curve,
        Span("   ", Tone.BAR_TEXT),
        Span(f"▶ {head.running} running", running),
        Span("   ", Tone.BAR_TEXT),
        Span(f"◔ {head.waiting} waiting", waiting),
    )
    room = width - width_of(fixed) - 4
    # The first one is clipped rather than left out.
    troubles = [(Span(clip(text, max(0, room)), Tone.BAR_BAD),) for text in head.trouble]
    facts = [(Span(text, Tone.BAR_DIM),) for text in head.totals]
    more = tuple(
        Span(span.text, Tone.BAR_TEXT) if span.tone is Tone.TEXT else span
        for span in parts([*troubles, *facts], room, " · ")
    )
    return spread(fixed, (*more, Span(" ", Tone.BAR_TEXT)), width, Tone.BAR_TEXT)
