"""How each tone is sent to the terminal: the themes, and what is left of them where no colour may be sent.

Without colour (`NO_COLOR`) only bold, dim and reverse remain; every state also has a glyph and a word.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from rich.segment import Segment
from rich.style import Style

from console.ascii import ascii_text
from console.palettes import DARK, LIGHT, SAFE
from console.spans import Line
from console.tones import Tone


class ThemeName(StrEnum):
    """A look that a person can choose."""

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
_FADED = {Tone.BAR_BAD, Tone.BAR_WAIT, Tone.BAD_STRONG, Tone.WAIT_STRONG}
_PLAIN_BOLD = {
    Tone.STRONG,
    Tone.TITLE,
    Tone.BRAND,
    Tone.BORDER_FOCUS,
    Tone.GOOD_STRONG,
    Tone.READ_STRONG,
    Tone.WAIT_STRONG,
    Tone.BAD_STRONG,
    Tone.KEY,
    Tone.BAR_STRONG,
    Tone.BAR_BRAND,
    Tone.BAR_GOOD,
    Tone.BAR_WAIT,
    Tone.BAR_BAD,
    Tone.BAR_READ,
}
_PLAIN_DIM = {Tone.FAINT, Tone.BORDER, Tone.TRACK, Tone.IDLE, Tone.FREE, Tone.KEPT}


@dataclass(frozen=True)
class Look:
    """A style for every tone. `plain`: no colour is sent. `ascii`: no glyph beyond ASCII is sent."""

    styles: MappingProxyType[Tone, Style]
    plain: bool
    ascii: bool = False

    @property
    def textures(self) -> bool:
        """Whether fills must differ by glyph: without colour, and where the finer shades have no glyph."""
        return self.plain or self.ascii

    def segments(self, line: Line) -> list[Segment]:
        """The line as it is sent: tones become styles, and glyphs what may be sent."""
        styles = self.styles
        if self.ascii:
            return [Segment(ascii_text(text), styles[tone]) for text, tone in line]
        return [Segment(text, styles[tone]) for text, tone in line]

    def shown(self, text: str) -> str:
        """The text in glyphs that may be sent."""
        return ascii_text(text) if self.ascii else text


def look(theme: ThemeName, *, plain: bool = False) -> Look:
    """The look of a theme; `plain` (`NO_COLOR`) leaves of it only its glyphs."""
    ascii_only = theme is ThemeName.ASCII
    if plain:
        return replace(_plain_look(), ascii=ascii_only)
    palette = PALETTES[theme]
    styles = {tone: Style.parse(f"{style} on {palette.ground}") for tone, style in palette.colours.items()}
    styles |= {tone: Style.parse(f"{style} on {palette.bar}") for tone, style in palette.bars.items()}
    return Look(MappingProxyType(styles), plain=False, ascii=ascii_only)


def _plain_look() -> Look:
    """The look where no colour may be sent."""
    bold, dim, normal = Style(bold=True), Style(dim=True), Style()
    styles = {tone: bold if tone in _PLAIN_BOLD else dim if tone in _PLAIN_DIM else normal for tone in Tone}
    return Look(MappingProxyType(styles), plain=True)


def faded(shown: Look) -> Look:
    """The look of a body whose figures are no longer live: one grey, so that nothing passes for current."""
    dim = Style(dim=True) if shown.plain else shown.styles[Tone.FAINT]
    styles = {tone: style if tone in _FADED else dim for tone, style in shown.styles.items()}
    return replace(shown, styles=MappingProxyType(styles))
