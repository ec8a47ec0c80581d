"""The two lines at the top: what runs, how it is, how fresh this is."""

from __future__ import annotations

from console.draw.bars import sparkline
from console.text import figures
from console.text.spans import Line, Span, StyleRole, clip, fit, parts, spread, width_of
from console.viewmodel.labels import RECORDING_LABEL
from console.viewmodel.rows import ScreenView


def header(view: ScreenView, width: int) -> tuple[Line, ...]:
    """Two lines of `width` cells."""
    return (_identity(view, width), _throughput(view, width))


def _identity(view: ScreenView, width: int) -> Line:
    head = view.header
    fresh = StyleRole.BAR_BAD if head.stale else StyleRole.BAR_WAIT if head.paused else StyleRole.BAR_DIM
    glyph = "✖" if head.stale else "‖" if head.paused else "◉"
    right: Line = (
        Span(f"{head.status.glyph} {head.status.text}", head.status.style),
        Span("   ", StyleRole.BAR_TEXT),
        Span(clip(f"{glyph} {head.freshness}", max(8, width // 2)), fresh),
        Span(" ", StyleRole.BAR_TEXT),
    )
    if head.recording:
        sign = RECORDING_LABEL
        right = (Span(f"{sign.glyph} {sign.text}", sign.style), Span("   ", StyleRole.BAR_TEXT), *right)
    if head.uptime and width >= 72:
        right = (Span(f"up {head.uptime}   ", StyleRole.BAR_DIM), *right)
    brand: Line = (Span(" ◆ tandem  ", StyleRole.BAR_BRAND),)
    room = width - width_of(right) - width_of(brand) - 2
    if head.place:
        brand = (*brand, Span(f"{head.place}  ", StyleRole.BAR_READ))
        room -= len(head.place) + 2
    model = clip(head.model, max(0, room))
    left = (*brand, Span(model, StyleRole.BAR_STRONG))
    if room - len(model) > len(head.detail) + 2:
        left = (*left, Span(f"  {head.detail}", StyleRole.BAR_DIM))
    return spread(left, right, width, StyleRole.BAR_TEXT)


def _throughput(view: ScreenView, width: int) -> Line:
    head = view.header
    if view.lanes is None:
        return fit((Span("   no snapshot yet", StyleRole.BAR_DIM),), width, StyleRole.BAR_TEXT)
    speed = figures.NONE if head.stale else figures.rate(head.tok_s)
    speed_style = StyleRole.BAR_GOOD if head.tok_s > 0 and not head.stale else StyleRole.BAR_DIM
    curve: Line = ()
    if not head.stale:
        curve = tuple(
            Span(span.text, StyleRole.BAR_DIM if span.style is StyleRole.TRACK else StyleRole.BAR_GOOD)
            for span in sparkline(head.rates, min(60, max(8, width // 4 - 3)), StyleRole.GOOD)
        )
    waiting = StyleRole.BAR_WAIT if head.waiting and not head.stale else StyleRole.BAR_DIM
    running = StyleRole.BAR_GOOD if head.running and not head.stale else StyleRole.BAR_DIM
    fixed: Line = (
        Span(f" {speed:>7} ", speed_style),
        Span("tok/s ", StyleRole.BAR_DIM),
        *curve,
        Span("   ", StyleRole.BAR_TEXT),
        Span(f"▶ {head.running} running", running),
        Span("   ", StyleRole.BAR_TEXT),
        Span(f"◔ {head.waiting} waiting", waiting),
    )
    room = width - width_of(fixed) - 4
    # The first one is clipped rather than left out.
    troubles = [(Span(clip(text, max(0, room)), StyleRole.BAR_BAD),) for text in head.trouble]
    facts = [(Span(text, StyleRole.BAR_DIM),) for text in head.totals]
    more = tuple(
        Span(span.text, StyleRole.BAR_TEXT) if span.style is StyleRole.TEXT else span
        for span in parts([*troubles, *facts], room, " · ")
    )
    return spread(fixed, (*more, Span(" ", StyleRole.BAR_TEXT)), width, StyleRole.BAR_TEXT)
