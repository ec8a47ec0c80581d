"""The help page: every key from the registry, grouped by where it works, and what each glyph means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from console.actions import Action, groups
from console.look import Look
from console.tones import Tone
from console.widgets.theme import plain_ascii
from console.words import FINISH_WORDS, LANE_WORDS, LEVEL_WORDS, ROLE_WORDS, WAIT_WORDS, Word

_ALL = 1 << 20
_SIGNS: tuple[tuple[str, Sequence[Word]], ...] = (
    ("lanes", list(LANE_WORDS.values())),
    ("queue", list(WAIT_WORDS.values())),
    ("roles", list(ROLE_WORDS.values())),
    ("ended", list(FINISH_WORDS.values())),
    ("log", list(LEVEL_WORDS.values())),
    (
        "window",
        [
            Word("■", "rows written", Tone.KV),
            Word("□", "committed ahead", Tone.MARGIN),
            Word("·", "only reserved, no memory", Tone.TRACK),
        ],
    ),
)


@dataclass(frozen=True)
class _Signs:
    """Glyphs with their words, as many a line as fit; a glyph is never parted from its word."""

    words: Sequence[Word]
    look: Look

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for word in self.words:
            sign = Text.assemble((self.look.shown(word.glyph), self.look.styles[word.tone]), f" {word.word.lower()}")
            if line and line.cell_len + 2 + sign.cell_len > options.max_width:
                yield line
                line = Text()
            line.append("  " if line else "").append(sign)
        yield line


class HelpScreen(ModalScreen[None]):
    """A page over the board; Escape, `?` or `q` closes it, the arrow keys scroll it."""

    BINDINGS = [  # noqa: RUF012 -- Textual reads a plain list
        Binding("escape,question_mark,f1,q", "dismiss", "close"),
        Binding("up,k", "lines(-1)", show=False),
        Binding("down,j", "lines(1)", show=False),
        Binding("pageup", "pages(-1)", show=False),
        Binding("pagedown,space", "pages(1)", show=False),
        Binding("home", f"lines(-{_ALL})", show=False),
        Binding("end", f"lines({_ALL})", show=False),
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
        border: $tandem-frame $tandem-accent;
        border-title-color: $tandem-title;
        border-subtitle-color: $tandem-dim;
        background: $tandem-ground;
        padding: 0 1;
        scrollbar-size: 1 1;
        scrollbar-color: $tandem-accent;
        scrollbar-background: $tandem-ground;
        &:nocolor { background: ansi_default; border: round ansi_default; }
    }
    HelpScreen Static { width: 1fr; background: transparent; }
    """

    def __init__(self, look: Look, first: Mapping[str, Sequence[Action]] = MappingProxyType({})) -> None:
        """`first` are groups of keys that stand before those of the registry."""
        super().__init__()
        self._look = look
        self._first = first

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = "tandem console: keys and signs"
            page.border_subtitle = self._look.shown("↑ ↓ scroll   esc close")
            plain_ascii(page, self._look)
            yield Static(self._page(), markup=False)

    def action_lines(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_pages(self, pages: int) -> None:
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=pages * max(1, page.size.height - 1), animate=False)

    def _page(self) -> Table:
        styles, shown = self._look.styles, self._look.shown
        page = Table.grid(padding=(0, 1), expand=True)
        page.add_column(width=7, no_wrap=True)
        page.add_column(ratio=1)
        for title, actions in [*self._first.items(), *groups()]:
            page.add_row("", Text(shown(title), styles[Tone.TITLE]))
            for action in filter(lambda action: action.help, actions):
                page.add_row(Text(shown(action.shown_key), styles[Tone.KEY]), Text(action.help, styles[Tone.TEXT]))
            page.add_row("", "")
        page.add_row("", Text("signs", styles[Tone.TITLE]))
        for title, words in _SIGNS:
            page.add_row(Text(title, styles[Tone.DIM]), _Signs(words, self._look))
        return page
