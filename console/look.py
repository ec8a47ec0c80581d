"""The style of each tone: a palette of xterm's 256 colours, so that truecolor and 256-colour terminals agree.

Without colour (`NO_COLOR`) only bold, dim and reverse remain; every state also has a glyph and a word.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style

from console.tones import Tone

GROUND = "#121212"
BAR = "#262626"

_COLOURS: dict[Tone, str] = {
    Tone.TEXT: "#c6c6c6",
    Tone.STRONG: "bold #eeeeee",
    Tone.DIM: "#8a8a8a",
    Tone.FAINT: "#585858",
    Tone.TITLE: "bold #d7d7ff",
    Tone.BRAND: "bold #5fd7d7",
    Tone.BORDER: "#444444",
    Tone.BORDER_FOCUS: "#5fafaf",
    Tone.TRACK: "#3a3a3a",
    Tone.GOOD: "#87d787",
    Tone.GOOD_STRONG: "bold #87d787",
    Tone.READ: "#5fafff",
    Tone.READ_STRONG: "bold #5fafff",
    Tone.WAIT: "#ffd75f",
    Tone.WAIT_STRONG: "bold #ffd75f",
    Tone.BAD: "#ff5f5f",
    Tone.BAD_STRONG: "bold #ff5f5f",
    Tone.IDLE: "#767676",
    Tone.KEPT: "#5f8787",
    Tone.MARGIN: "#5f8787",
    Tone.KEY: "bold #5fd7d7",
    Tone.WEIGHTS: "#af87ff",
    Tone.KV: "#5fd7d7",
    Tone.CACHES: "#d7af5f",
    Tone.STATE: "#87afd7",
    Tone.GRAPHS: "#5f87d7",
    Tone.WORKSPACE: "#d787af",
    Tone.ALLOCATOR: "#afaf87",
    Tone.ROLES: "#ff87d7",
    Tone.OUTSIDE: "#808080",
    Tone.FREE: "#3a3a3a",
}
_BAR_COLOURS: dict[Tone, str] = {
    Tone.BAR_TEXT: "#c6c6c6",
    Tone.BAR_DIM: "#8a8a8a",
    Tone.BAR_STRONG: "bold #eeeeee",
    Tone.BAR_BRAND: "bold #5fd7d7",
    Tone.BAR_GOOD: "bold #87d787",
    Tone.BAR_WAIT: "bold #ffd75f",
    Tone.BAR_BAD: "bold #ff5f5f",
    Tone.BAR_READ: "bold #5fafff",
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
    """A style for every tone, and whether fills must differ by glyph since there is no colour."""

    styles: dict[Tone, Style]
    plain: bool


def colour_look() -> Look:
    """The look on a terminal with colour."""
    styles = {tone: Style.parse(f"{style} on {GROUND}") for tone, style in _COLOURS.items()}
    styles |= {tone: Style.parse(f"{style} on {BAR}") for tone, style in _BAR_COLOURS.items()}
    return Look(styles, plain=False)


def plain_look() -> Look:
    """The look where no colour may be sent."""
    bold, dim, normal = Style(bold=True), Style(dim=True), Style()
    return Look(
        {tone: bold if tone in _PLAIN_BOLD else dim if tone in _PLAIN_DIM else normal for tone in Tone}, plain=True
    )


def faded(look: Look) -> Look:
    """The look of a body whose figures are no longer live: one grey, so that nothing passes for current."""
    dim = Style(dim=True) if look.plain else look.styles[Tone.FAINT]
    return Look({tone: style if tone in _FADED else dim for tone, style in look.styles.items()}, look.plain)
