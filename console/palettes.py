"""The colours of each tone in each theme, all within xterm's 256, so that truecolor and 256-colour terminals agree."""

from __future__ import annotations

from dataclasses import dataclass

from console.tones import Tone


@dataclass(frozen=True)
class Palette:
    """A ground, a bar and a line to type in, and a colour for each tone: `bars` stand on the bar, the rest on the
    ground. `accent` frames what is open over the board."""

    ground: str
    bar: str
    input: str
    accent: str
    colours: dict[Tone, str]
    bars: dict[Tone, str]


DARK = Palette(
    ground="#121212",
    bar="#262626",
    input="#303030",
    accent="#5fafaf",
    colours={
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
    },
    bars={
        Tone.BAR_TEXT: "#c6c6c6",
        Tone.BAR_DIM: "#8a8a8a",
        Tone.BAR_STRONG: "bold #eeeeee",
        Tone.BAR_BRAND: "bold #5fd7d7",
        Tone.BAR_GOOD: "bold #87d787",
        Tone.BAR_WAIT: "bold #ffd75f",
        Tone.BAR_BAD: "bold #ff5f5f",
        Tone.BAR_READ: "bold #5fafff",
    },
)

LIGHT = Palette(
    ground="#ffffff",
    bar="#dadada",
    input="#e4e4e4",
    accent="#005f87",
    colours={
        Tone.TEXT: "#303030",
        Tone.STRONG: "bold #000000",
        Tone.DIM: "#626262",
        Tone.FAINT: "#8a8a8a",
        Tone.TITLE: "bold #00005f",
        Tone.BRAND: "bold #005f87",
        Tone.BORDER: "#b2b2b2",
        Tone.BORDER_FOCUS: "#005f87",
        Tone.TRACK: "#c6c6c6",
        Tone.GOOD: "#008700",
        Tone.GOOD_STRONG: "bold #005f00",
        Tone.READ: "#005fd7",
        Tone.READ_STRONG: "bold #005fd7",
        Tone.WAIT: "#875f00",
        Tone.WAIT_STRONG: "bold #875f00",
        Tone.BAD: "#d70000",
        Tone.BAD_STRONG: "bold #d70000",
        Tone.IDLE: "#767676",
        Tone.KEPT: "#5f8787",
        Tone.MARGIN: "#5f8787",
        Tone.KEY: "bold #005f87",
        Tone.WEIGHTS: "#875fd7",
        Tone.KV: "#0087af",
        Tone.CACHES: "#af8700",
        Tone.STATE: "#5f87af",
        Tone.GRAPHS: "#005faf",
        Tone.WORKSPACE: "#af5f87",
        Tone.ALLOCATOR: "#87875f",
        Tone.ROLES: "#d70087",
        Tone.OUTSIDE: "#808080",
        Tone.FREE: "#c6c6c6",
    },
    bars={
        Tone.BAR_TEXT: "#303030",
        Tone.BAR_DIM: "#585858",
        Tone.BAR_STRONG: "bold #000000",
        Tone.BAR_BRAND: "bold #005f87",
        Tone.BAR_GOOD: "bold #005f00",
        Tone.BAR_WAIT: "bold #875f00",
        Tone.BAR_BAD: "bold #af0000",
        Tone.BAR_READ: "bold #005faf",
    },
)

# Blue against orange is what all common forms of colour blindness leave apart; light against dark does the rest.
SAFE = Palette(
    ground=DARK.ground,
    bar=DARK.bar,
    input=DARK.input,
    accent="#5fafff",
    colours=DARK.colours
    | {
        Tone.BRAND: "bold #87d7ff",
        Tone.BORDER_FOCUS: "#5fafff",
        Tone.GOOD: "#5fafff",
        Tone.GOOD_STRONG: "bold #5fafff",
        Tone.READ: "#afd7ff",
        Tone.READ_STRONG: "bold #afd7ff",
        Tone.WAIT: "#ffd787",
        Tone.WAIT_STRONG: "bold #ffd787",
        Tone.BAD: "#ff8700",
        Tone.BAD_STRONG: "bold #ff8700",
        Tone.KEPT: "#5f87af",
        Tone.MARGIN: "#5f87af",
        Tone.KEY: "bold #87d7ff",
        Tone.WEIGHTS: "#0087d7",
        Tone.KV: "#87d7ff",
        Tone.CACHES: "#ffaf00",
        Tone.STATE: "#005f87",
        Tone.GRAPHS: "#ffd7af",
        Tone.WORKSPACE: "#d75f00",
        Tone.ALLOCATOR: "#afd7ff",
        Tone.ROLES: "#ffff87",
    },
    bars=DARK.bars
    | {
        Tone.BAR_BRAND: "bold #87d7ff",
        Tone.BAR_GOOD: "bold #5fafff",
        Tone.BAR_WAIT: "bold #ffd787",
        Tone.BAR_BAD: "bold #ff8700",
        Tone.BAR_READ: "bold #afd7ff",
    },
)
