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

from console.draw.theme import Theme
from console.keys.actions import Action, groups
from console.text.spans import StyleRole
from console.viewmodel.labels import FINISH_LABELS, LANE_LABELS, LEVEL_LABELS, ROLE_LABELS, WAIT_LABELS, StatusLabel
from console.widgets.textual_theme import plain_ascii

_ALL = 1 << 20
_SIGNS: tuple[tuple[str, Sequence[StatusLabel]], ...] = (
    ("lanes", list(LANE_LABELS.values())),
    ("queue", list(WAIT_LABELS.values())),
    ("roles", list(ROLE_LABELS.values())),
    ("ended", list(FINISH_LABELS.values())),
    ("log", list(LEVEL_LABELS.values())),
    (
        "window",
        [
            StatusLabel("■", "rows written", StyleRole.KV),
            StatusLabel("□", "committed ahead", StyleRole.MARGIN),
            StatusLabel("·", "only reserved, no memory", StyleRole.TRACK),
        ],
    ),
)


@dataclass(frozen=True)
class _Signs:
    """Labels side by side, as many a line as fit. A line break never parts a glyph from its text."""

    labels: Sequence[StatusLabel]
    theme: Theme

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for label in self.labels:
            sign = Text.assemble(
                (self.theme.shown(label.glyph), self.theme.styles[label.style]), f" {label.text.lower()}"
            )
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

    def __init__(self, theme: Theme, first: Mapping[str, Sequence[Action]] = MappingProxyType({})) -> None:
        """`first` are groups of keys that stand before those of the registry."""
        super().__init__()
        self._theme = theme
        self._first = first

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = "tandem console: keys and signs"
            page.border_subtitle = self._theme.shown("↑ ↓ scroll   esc close")
            plain_ascii(page, self._theme)
            yield Static(self._page(), markup=False)

    def action_lines(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_pages(self, pages: int) -> None:
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=pages * max(1, page.size.height - 1), animate=False)

    def _page(self) -> Table:
        styles, shown = self._theme.styles, self._theme.shown
        page = Table.grid(padding=(0, 1), expand=True)
        page.add_column(width=7, no_wrap=True)
        page.add_column(ratio=1)
        for title, actions in [*self._first.items(), *groups()]:
            page.add_row("", Text(shown(title), styles[StyleRole.TITLE]))
            for action in filter(lambda action: action.help, actions):
                page.add_row(
                    Text(shown(action.shown_key), styles[StyleRole.KEY]), Text(action.help, styles[StyleRole.TEXT])
                )
            page.add_row("", "")
        page.add_row("", Text("signs", styles[StyleRole.TITLE]))
        for title, labels in _SIGNS:
            page.add_row(Text(title, styles[StyleRole.DIM]), _Signs(labels, self._theme))
        return page
