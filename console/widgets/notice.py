"""A short notice over the footer: the result of an action."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text
from textual.timer import Timer
from textual.widgets import Static

from console.draw.theme import Theme
from console.text.spans import StyleRole

SHOWN_S = 8.0


class NoticeBar(Static):
    """At most a few lines at the lower edge; gone after eight seconds, or with the next notice."""

    DEFAULT_CSS = """
    NoticeBar {
        layer: above;
        dock: bottom;
        height: auto;
        max-height: 5;
        padding: 0 1;
        background: $tandem-input;
        &:nocolor { background: ansi_default; }
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._until: Timer | None = None
        self.display = False

    def say(self, text: str, theme: Theme, *, good: bool) -> None:
        """Show the notice; a failure begins with a cross."""
        glyph, role = ("●", StyleRole.GOOD_STRONG) if good else ("✖", StyleRole.BAD_STRONG)
        style = theme.styles[role]
        # On the bar's own ground, not on the board's.
        sign = (theme.shown(f"{glyph} "), Style(color=style.color, bold=style.bold))
        self.update(Text.assemble(sign, theme.shown(text)))
        self.display = True
        if self._until is not None:
            self._until.stop()
        self._until = self.set_timer(SHOWN_S, self.hush)

    def hush(self) -> None:
        """Hide the notice."""
        self.display = False
