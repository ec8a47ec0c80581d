"""The themes as Textual themes, for widgets that Textual draws: command palette, filter, help."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.containers import VerticalScroll
from textual.filter import LineFilter
from textual.theme import Theme as TextualTheme

from console.draw.theme import LIGHT, PALETTES, Palette, Theme, ThemeName
from console.text.ascii import ascii_text
from console.text.spans import StyleRole


class AsciiFilter(LineFilter):
    """Replaces glyphs by ASCII in widgets other than the board, which does it for its own lines."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(ascii_text(text), style, control) for text, style, control in segments]


def textual_theme(theme: ThemeName) -> TextualTheme:
    """The palette of `theme` in the names that Textual's own widgets use, and the variables of ours."""
    palette = PALETTES[theme]
    text, strong = palette.colours[StyleRole.TEXT], palette.colours[StyleRole.STRONG].removeprefix("bold ")
    return TextualTheme(
        name=textual_name(theme),
        primary=palette.accent,
        secondary=palette.accent,
        accent=palette.accent,
        foreground=text,
        background=palette.ground,
        surface=palette.bar,
        panel=palette.bar,
        dark=palette is not LIGHT,
        variables=_variables(palette, strong, ascii_only=theme is ThemeName.ASCII),
    )


def textual_name(theme: ThemeName) -> str:
    """What Textual calls the theme."""
    return f"tandem-{theme.value}"


def _variables(palette: Palette, strong: str, *, ascii_only: bool) -> dict[str, str]:
    return {
        "tandem-ground": palette.ground,
        "tandem-input": palette.input,
        "tandem-accent": palette.accent,
        "tandem-strong": strong,
        "tandem-dim": palette.colours[StyleRole.DIM],
        "tandem-wait": palette.colours[StyleRole.WAIT],
        "tandem-title": palette.colours[StyleRole.TITLE].removeprefix("bold "),
        "tandem-frame": "ascii" if ascii_only else "round",
    }


def default_variables() -> dict[str, str]:
    """The variables of the default theme, for as long as none is chosen."""
    return dict(textual_theme(ThemeName.DARK).variables)


def plain_ascii(box: VerticalScroll, theme: Theme) -> None:
    """In an ASCII theme, remove the border and scroll bar glyphs that Textual draws around a page."""
    if not theme.ascii:
        return
    # A scroll bar is drawn in eighths of a cell; the keys scroll without it.
    box.styles.scrollbar_size_vertical = 0
    if theme.plain:
        # Without colour there are no themes, whose frame this would otherwise be.
        box.styles.border = ("ascii", "ansi_default")
