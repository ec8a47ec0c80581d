"""The filter's input line: opens over the footer and applies while typing."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import Input

LIMIT = 200


class FilterBar(Input):
    """One line of text. Enter and Escape close it; a paste is cut to one line of at most 200 characters."""

    DEFAULT_CSS = """
    FilterBar {
        layer: above;
        dock: bottom;
        height: 1;
        border: none;
        padding: 0 1 !important;
        background: $tandem-input;
        color: $tandem-strong;
        &:focus { border: none; }
        &:nocolor { background: ansi_default; color: ansi_default; }
    }
    """

    @dataclass
    class Closed(Message):
        """The bar was closed; `keep` says whether its text stays as the filter."""

        keep: bool

    def __init__(self) -> None:
        super().__init__(
            placeholder="client, id or state; Enter keeps, Escape clears",
            max_length=LIMIT,
            compact=True,
            select_on_focus=False,
        )
        self.cursor_blink = False
        self.display = False

    def open(self, text: str) -> None:
        """Show it with `text` in it, ready to type."""
        self.value = text
        self.cursor_position = len(text)
        # At once, not at the next refresh, so that text typed right after the slash goes in here.
        self.display = True
        self.screen.set_focus(self)

    def close(self) -> None:
        self.display = False
        self.screen.set_focus(None)

    def on_paste(self, event: events.Paste) -> None:
        # A paste may hold anything: newlines must not submit, and a long one must not be refused whole.
        event.stop()
        event.prevent_default()
        text = " ".join(event.text[: 4 * LIMIT].split())
        room = LIMIT - len(self.value)
        if room > 0:
            self.insert_text_at_cursor("".join(filter(str.isprintable, text))[:room])

    def key_escape(self) -> None:
        self.post_message(self.Closed(keep=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Closed(keep=True))
