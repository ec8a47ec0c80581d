"""The themes: which colour each style role gets, and what remains of it where no colour may be sent.

Colours are within xterm's 256, so that truecolor and 256-colour terminals agree. Without colour (`NO_COLOR`) only bold,
dim and reverse remain; every state also has a glyph and a text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from rich.segment import Segment
from rich.style import Style

from console.text.ascii import ascii_text
from console.text.spans import Line, StyleRole


@dataclass(frozen=True)
class Palette:
    """Background colours of the ground, the bar and the input line, and a colour for each style role: `bars` are drawn
    on the bar, `colours` on the ground. `accent` frames what is open over the board."""

    ground: str
    bar: str
    input: str
    accent: str
    colours: dict[StyleRole, str]
    bars: dict[StyleRole, str]


DARK = Palette(
    ground="#121212",
    bar="#262626",
    input="#303030",
    accent="#5fafaf",
    colours={
        StyleRole.TEXT: "#c6c6c6",
        StyleRole.STRONG: "bold #eeeeee",
        StyleRole.DIM: "#8a8a8a",
        StyleRole.FAINT: "#585858",
        StyleRole.TITLE: "bold #d7d7ff",
        StyleRole.BRAND: "bold #5fd7d7",
        StyleRole.BORDER: "#444444",
        StyleRole.BORDER_FOCUS: "#5fafaf",
        StyleRole.TRACK: "#3a3a3a",
        StyleRole.GOOD: "#87d787",
        StyleRole.GOOD_STRONG: "bold #87d787",
        StyleRole.READ: "#5fafff",
        StyleRole.READ_STRONG: "bold #5fafff",
        StyleRole.WAIT: "#ffd75f",
        StyleRole.WAIT_STRONG: "bold #ffd75f",
        StyleRole.BAD: "#ff5f5f",
        StyleRole.BAD_STRONG: "bold #ff5f5f",
        StyleRole.IDLE: "#767676",
        StyleRole.KEPT: "#5f8787",
        StyleRole.MARGIN: "#5f8787",
        StyleRole.KEY: "bold #5fd7d7",
        StyleRole.WEIGHTS: "#af87ff",
        StyleRole.KV: "#5fd7d7",
        StyleRole.CACHES: "#d7af5f",
        StyleRole.STATE: "#87afd7",
        StyleRole.GRAPHS: "#5f87d7",
        StyleRole.WORKSPACE: "#d787af",
        StyleRole.ALLOCATOR: "#afaf87",
        StyleRole.ROLES: "#ff87d7",
        StyleRole.OUTSIDE: "#808080",
        StyleRole.FREE: "#3a3a3a",
    },
    bars={
        StyleRole.BAR_TEXT: "#c6c6c6",
        StyleRole.BAR_DIM: "#8a8a8a",
        StyleRole.BAR_STRONG: "bold #eeeeee",
        StyleRole.BAR_BRAND: "bold #5fd7d7",
        StyleRole.BAR_GOOD: "bold #87d787",
        StyleRole.BAR_WAIT: "bold #ffd75f",
        StyleRole.BAR_BAD: "bold #ff5f5f",
        StyleRole.BAR_READ: "bold #5fafff",
    },
)

LIGHT = Palette(
    ground="#ffffff",
    bar="#dadada",
    input="#e4e4e4",
    accent="#005f87",
    colours={
        StyleRole.TEXT: "#303030",
        StyleRole.STRONG: "bold #000000",
        StyleRole.DIM: "#626262",
        StyleRole.FAINT: "#8a8a8a",
        StyleRole.TITLE: "bold #00005f",
        StyleRole.BRAND: "bold #005f87",
        StyleRole.BORDER: "#b2b2b2",
        StyleRole.BORDER_FOCUS: "#005f87",
        StyleRole.TRACK: "#c6c6c6",
        StyleRole.GOOD: "#008700",
        StyleRole.GOOD_STRONG: "bold #005f00",
        StyleRole.READ: "#005fd7",
        StyleRole.READ_STRONG: "bold #005fd7",
        StyleRole.WAIT: "#875f00",
        StyleRole.WAIT_STRONG: "bold #875f00",
        StyleRole.BAD: "#d70000",
        StyleRole.BAD_STRONG: "bold #d70000",
        StyleRole.IDLE: "#767676",
        StyleRole.KEPT: "#5f8787",
        StyleRole.MARGIN: "#5f8787",
        StyleRole.KEY: "bold #005f87",
        StyleRole.WEIGHTS: "#875fd7",
        StyleRole.KV: "#0087af",
        StyleRole.CACHES: "#af8700",
        StyleRole.STATE: "#5f87af",
        StyleRole.GRAPHS: "#005faf",
        StyleRole.WORKSPACE: "#af5f87",
        StyleRole.ALLOCATOR: "#87875f",
        StyleRole.ROLES: "#d70087",
        StyleRole.OUTSIDE: "#808080",
        StyleRole.FREE: "#c6c6c6",
    },
    bars={
        StyleRole.BAR_TEXT: "#303030",
        StyleRole.BAR_DIM: "#585858",
        StyleRole.BAR_STRONG: "bold #000000",
        StyleRole.BAR_BRAND: "bold #005f87",
        StyleRole.BAR_GOOD: "bold #005f00",
        StyleRole.BAR_WAIT: "bold #875f00",
        StyleRole.BAR_BAD: "bold #af0000",
        StyleRole.BAR_READ: "bold #005faf",
    },
)

# All common forms of colour blindness tell blue from orange. Brightness tells the other colours apart.
SAFE = Palette(
    ground=DARK.ground,
    bar=DARK.bar,
    input=DARK.input,
    accent="#5fafff",
    colours=DARK.colours
    | {
        StyleRole.BRAND: "bold #87d7ff",
        StyleRole.BORDER_FOCUS: "#5fafff",
        StyleRole.GOOD: "#5fafff",
        StyleRole.GOOD_STRONG: "bold #5fafff",
        StyleRole.READ: "#afd7ff",
        StyleRole.READ_STRONG: "bold #afd7ff",
        StyleRole.WAIT: "#ffd787",
        StyleRole.WAIT_STRONG: "bold #ffd787",
        StyleRole.BAD: "#ff8700",
        StyleRole.BAD_STRONG: "bold #ff8700",
        StyleRole.KEPT: "#5f87af",
        StyleRole.MARGIN: "#5f87af",
        StyleRole.KEY: "bold #87d7ff",
        StyleRole.WEIGHTS: "#0087d7",
        StyleRole.KV: "#87d7ff",
        StyleRole.CACHES: "#ffaf00",
        StyleRole.STATE: "#005f87",
        StyleRole.GRAPHS: "#ffd7af",
        StyleRole.WORKSPACE: "#d75f00",
        StyleRole.ALLOCATOR: "#afd7ff",
        StyleRole.ROLES: "#ffff87",
    },
    bars=DARK.bars
    | {
        StyleRole.BAR_BRAND: "bold #87d7ff",
        StyleRole.BAR_GOOD: "bold #5fafff",
        StyleRole.BAR_WAIT: "bold #ffd787",
        StyleRole.BAR_BAD: "bold #ff8700",
        StyleRole.BAR_READ: "bold #afd7ff",
    },
)


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
