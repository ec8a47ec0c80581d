"""The confirmation box: what exactly an action will do, and to which engine."""

from __future__ import annotations

import math

from rich.text import Text
from textual import events
from textual._time import get_time
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from console.draw.theme import Theme
from console.text.spans import StyleRole
from console.viewmodel.confirmations import Question
from console.widgets.textual_theme import plain_ascii

YES = ("y", "enter")
MOMENT_S = 0.3
"""Seconds without a key before a key may confirm. Nobody reads the question faster."""


class ConfirmScreen(ModalScreen[bool]):
    """A box over the board; `y` and Enter say yes, `n` and Escape no. `url` names the engine it is about.

    What says yes was pressed by itself, a moment after the box was seen: `y` within a pasted text does not.
    """

    BINDINGS = [  # noqa: RUF012 -- Textual reads a plain list
        Binding(",".join(YES), "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
        Binding("up,k", "lines(-1)", show=False),
        Binding("down,j", "lines(1)", show=False),
    ]
    DEFAULT_CSS = """
    ConfirmScreen {
        align: center middle;
        background: #000000 60%;
        &:nocolor { background: ansi_default; }
    }
    ConfirmScreen > VerticalScroll {
        width: 64;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        border: $tandem-frame $tandem-wait;
        border-title-color: $tandem-strong;
        background: $tandem-ground;
        padding: 1 2;
        scrollbar-size: 1 1;
        scrollbar-color: $tandem-accent;
        scrollbar-background: $tandem-ground;
        &:nocolor { background: ansi_default; border: round ansi_default; }
    }
    ConfirmScreen Static { width: 1fr; background: transparent; }
    """

    def __init__(self, theme: Theme, question: Question, url: str) -> None:
        super().__init__()
        self._theme = theme
        self._question = question
        self._url = url
        self._quiet_since = math.inf

    def on_mount(self) -> None:
        self.call_after_refresh(self._seen)

    def _seen(self) -> None:
        self._quiet_since = get_time()

    def takes(self, key: events.Key) -> bool:
        """Whether the key was meant for this box. Called for every key while the box is open."""
        alone = key.time - self._quiet_since >= MOMENT_S
        if self._quiet_since < key.time:
            self._quiet_since = key.time
        return alone or key.key not in YES

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "to be confirmed"
            plain_ascii(box, self._theme)
            yield Static(self._text(), markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def action_lines(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def _text(self) -> Text:
        styles = self._theme.styles
        text = Text()
        text.append(self._theme.shown(self._question.title) + "\n\n", styles[StyleRole.STRONG])
        text.append(self._theme.shown(self._question.text) + "\n\n", styles[StyleRole.TEXT])
        text.append(f"at {self._url}\n\n", styles[StyleRole.DIM])
        text.append("y", styles[StyleRole.KEY])
        text.append(f"  yes, {self._question.yes}      ", styles[StyleRole.TEXT])
        text.append("n", styles[StyleRole.KEY])
        text.append("  no, leave it", styles[StyleRole.TEXT])
        return text
