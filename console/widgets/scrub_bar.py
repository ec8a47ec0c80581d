"""The lower edge in a recording: the position line, and the input line for a time."""

from __future__ import annotations

from dataclasses import dataclass

from textual.geometry import Region as Area
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from console.draw.scrub import scrub
from console.draw.theme import Theme
from console.history.timeline import TapeView
from console.text.spans import Line


class ScrubBar(Widget):
    """One line under the board; painted only when it changes."""

    DEFAULT_CSS = """
    ScrubBar {
        dock: bottom;
        height: 1;
        background: transparent;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._line: Line = ()
        self._strip = Strip.blank(0)

    def show(self, view: TapeView, theme: Theme) -> None:
        """Draw how the tape stands."""
        line = scrub(view, self.size.width)
        strip = Strip(theme.segments(line))
        if line != self._line or strip != self._strip:
            self._line, self._strip = line, strip
            self.refresh()

    def render_lines(self, crop: Area) -> list[Strip]:
        return [self._strip.crop_extend(crop.x, crop.right, None)] * crop.height


class TimeBar(Input):
    """Asks for a time of day; Enter goes there, Escape closes it."""

    DEFAULT_CSS = """
    TimeBar {
        layer: above;
        dock: bottom;
        height: 1;
        border: none;
        padding: 0 1 !important;
        background: #303030;
        color: #eeeeee;
        &:focus { border: none; }
        &:nocolor { background: ansi_default; color: ansi_default; }
    }
    """

    @dataclass
    class Asked(Message):
        """A person typed a time."""

        text: str

    def __init__(self) -> None:
        super().__init__(placeholder="HH:MM:SS; Enter goes there, Escape closes", max_length=20, compact=True)
        self.cursor_blink = False
        self.display = False

    def open(self) -> None:
        """Show it empty, ready to type."""
        self.value = ""
        self.display = True
        self.screen.set_focus(self)

    def close(self) -> None:
        self.display = False
        self.screen.set_focus(None)

    def key_escape(self) -> None:
        self.close()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
        self.post_message(self.Asked(event.value))
