"""The help page: every key from the registry, and what each glyph means."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from console.actions import ACTIONS
from console.look import Look
from console.spans import column
from console.tones import Tone
from console.words import LANE_WORDS, ROLE_WORDS, WAIT_WORDS, Word


class HelpScreen(ModalScreen[None]):
    """A page over the board; Escape, `?` or `q` closes it."""

    BINDINGS = [  # noqa: RUF012 -- Textual reads a plain list
        Binding("escape,question_mark,f1,q", "dismiss", "close"),
        Binding("up,k", "lines(-1)", show=False),
        Binding("down,j", "lines(1)", show=False),
    ]
    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        background: #000000 60%;
        &:nocolor { background: ansi_default; }
    }
    HelpScreen > VerticalScroll {
        width: 76;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        border: round #5fafaf;
        border-title-color: #d7d7ff;
        background: #121212;
        padding: 0 1;
        scrollbar-size: 1 1;
        scrollbar-color: #5fafaf;
        scrollbar-background: #121212;
        &:nocolor { background: ansi_default; border: round ansi_default; }
    }
    HelpScreen Static { width: 1fr; background: transparent; }
    """

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = "tandem console: keys and signs"
            yield Static(self._page(), markup=False)

    def action_lines(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def _page(self) -> Text:
        styles = self._look.styles
        page = Text()
        for action in filter(lambda action: action.help, ACTIONS):
            page.append(column(action.shown_key, 7), styles[Tone.KEY])
            page.append(action.help + "\n", styles[Tone.TEXT])
        for title, words in (
            ("lanes", list(LANE_WORDS.values())),
            ("queue", list(WAIT_WORDS.values())),
            ("roles", list(ROLE_WORDS.values())),
        ):
            page.append(f"\n{column(title, 7)}", styles[Tone.TITLE])
            self._signs(page, words)
        page.append(f"\n{column('window', 7)}", styles[Tone.TITLE])
        page.append("■", styles[Tone.KV])
        page.append(" rows written  ", styles[Tone.TEXT])
        page.append("□", styles[Tone.MARGIN])
        page.append(" committed ahead  ", styles[Tone.TEXT])
        page.append("·", styles[Tone.TRACK])
        page.append(" only reserved, no memory", styles[Tone.TEXT])
        return page

    def _signs(self, page: Text, words: list[Word]) -> None:
        used = 0
        for word in words:
            sign = f"{word.glyph} {word.word.lower()}  "
            if used + len(sign) > 64:
                page.append("\n" + " " * 7)
                used = 0
            page.append(sign[:2], self._look.styles[word.tone])
            page.append(sign[2:], self._look.styles[Tone.TEXT])
            used += len(sign)
