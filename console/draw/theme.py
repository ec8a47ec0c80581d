"""The themes: which terminal style each style role gets, and what remains of it where no colour may be sent.

Without colour (`NO_COLOR`) only bold, dim and reverse remain; every state also has a glyph and a word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from rich.segment import Segment
from rich.style import Style

from console.draw.palettes import DARK, LIGHT, SAFE
from console.text.ascii import ascii_text
from console.text.spans import Line
from console.text.style_roles import StyleRole


class ThemeName(StrEnum):
    """The themes to choose from."""

    DARK = "dark"
    LIGHT = "light"
    ASCII = "ascii"
    COLOUR_BLIND = "colour-blind"


PALETTES = {
    ThemeName.DARK: DARK,
    ThemeName.LIGHT: LIGHT,
    ThemeName.ASCII: DARK,
    ThemeName.COLOUR_BLIND: SAFE,
}
_FADED = {StyleRole.BAR_BAD, StyleRole.BAR_WAIT, StyleRole.BAD_STRONG, StyleRole.WAIT_STRONG}
_PLAIN_BOLD = {
    StyleRole.STRONG,
    StyleRole.TITLE,
    StyleRole.BRAND,
    StyleRole.BORDER_FOCUS,
    StyleRole.GOOD_STRONG,
    StyleRole.READ_STRONG,
    StyleRole.WAIT_STRONG,
    StyleRole.BAD_STRONG,
    StyleRole.KEY,
    StyleRole.BAR_STRONG,
    StyleRole.BAR_BRAND,
    StyleRole.BAR_GOOD,
    StyleRole.BAR_WAIT,
    StyleRole.BAR_BAD,
    StyleRole.BAR_READ,
}
_PLAIN_DIM = {StyleRole.FAINT, StyleRole.BORDER, StyleRole.TRACK, StyleRole.IDLE, StyleRole.FREE, StyleRole.KEPT}


@dataclass(frozen=True)
class Theme:
    """A terminal style for every style role. `plain`: no colour is sent. `ascii`: only ASCII characters are sent."""

    styles: MappingProxyType[StyleRole, Style]
    plain: bool
    ascii: bool = False

    @property
    def textures(self) -> bool:
        """Whether fills must differ by glyph, because colour is missing or ASCII has no glyphs for shades."""
        return self.plain or self.ascii

    def segments(self, line: Line) -> list[Segment]:
        """The line as Rich segments, with terminal styles for style roles, in ASCII where the theme asks for it."""
        styles = self.styles
        if self.ascii:
            return [Segment(ascii_text(text), styles[role]) for text, role in line]
        return [Segment(text, styles[role]) for text, role in line]

    def shown(self, text: str) -> str:
        """The text, in ASCII where the theme asks for it."""
        return ascii_text(text) if self.ascii else text


def make_theme(name: ThemeName, *, plain: bool = False) -> Theme:
    """The theme of that name. With `plain` (`NO_COLOR`) it keeps only its glyphs."""
    ascii_only = name is ThemeName.ASCII
    if plain:
        return replace(_plain_theme(), ascii=ascii_only)
    palette = PALETTES[name]
    styles = {role: Style.parse(f"{style} on {palette.ground}") for role, style in palette.colours.items()}
    styles |= {role: Style.parse(f"{style} on {palette.bar}") for role, style in palette.bars.items()}
    return Theme(MappingProxyType(styles), plain=False, ascii=ascii_only)


def _plain_theme() -> Theme:
    """The theme for terminals to which no colour may be sent."""
    bold, dim, normal = Style(bold=True), Style(dim=True), Style()
    styles = {role: bold if role in _PLAIN_BOLD else dim if role in _PLAIN_DIM else normal for role in StyleRole}
    return Theme(MappingProxyType(styles), plain=True)


def faded(theme: Theme) -> Theme:
    """The theme in one grey, for figures that are no longer current."""
    dim = Style(dim=True) if theme.plain else theme.styles[StyleRole.FAINT]
    styles = {role: style if role in _FADED else dim for role, style in theme.styles.items()}
    return replace(theme, styles=MappingProxyType(styles))
