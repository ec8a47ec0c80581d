"""Lines of styled text: the form in which every part of the screen is drawn, without types of a terminal library.

A `Line` is a tuple of `Span`s. The style of a span is a role, not a colour; `draw/theme.py` maps roles to colours.
Widths are terminal cells, so wide characters take two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size


class StyleRole(StrEnum):
    """The meaning of a run of text. A name says why the text stands out, never in which colour."""

    TEXT = "text"
    STRONG = "strong"
    DIM = "dim"
    FAINT = "faint"
    TITLE = "title"
    BRAND = "brand"
    BORDER = "border"
    BORDER_FOCUS = "border_focus"
    TRACK = "track"
    GOOD = "good"
    GOOD_STRONG = "good_strong"
    READ = "read"
    READ_STRONG = "read_strong"
    WAIT = "wait"
    WAIT_STRONG = "wait_strong"
    BAD = "bad"
    BAD_STRONG = "bad_strong"
    IDLE = "idle"
    KEPT = "kept"
    MARGIN = "margin"
    KEY = "key"
    BAR_TEXT = "bar_text"
    BAR_DIM = "bar_dim"
    BAR_STRONG = "bar_strong"
    BAR_BRAND = "bar_brand"
    BAR_GOOD = "bar_good"
    BAR_WAIT = "bar_wait"
    BAR_BAD = "bar_bad"
    BAR_READ = "bar_read"
    WEIGHTS = "weights"
    KV = "kv"
    CACHES = "caches"
    STATE = "state"
    GRAPHS = "graphs"
    WORKSPACE = "workspace"
    ALLOCATOR = "allocator"
    ROLES = "roles"
    OUTSIDE = "outside"
    FREE = "free"


class Align(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Span(NamedTuple):
    """A run of text with one style role."""

    text: str
    style: StyleRole = StyleRole.TEXT


Line = tuple[Span, ...]

ELLIPSIS = "…"
# Marks and joiners that terminals disagree about: shown, they would shift everything right of them.
_UNSHOWABLE = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mc"})
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")
# What only changes the sign before it: variation selectors, skin tones.
_MODIFIERS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400))))


def literal(text: str) -> str:
    """Make text from outside safe to show: each control character becomes its visible picture.

    C0 controls and DEL become U+2400 pictures; other invisible or unassigned characters (C1 controls, direction
    overrides, joiners, lone surrogates) and marks that some terminals give a cell and some none become U+FFFD;
    variation selectors and skin tones are dropped, since they change widths.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    for character in text:
        code = ord(character)
        if code < 0x20:
            shown.append(chr(0x2400 + code))
        elif code == 0x7F:
            shown.append("␡")
        elif character in _MODIFIERS:
            continue
        elif 0x7F < code < 0xA0 or character in _BLANK_LETTERS or unicodedata.category(character) in _UNSHOWABLE:
            shown.append("�")
        else:
            shown.append(character)
    return "".join(shown)


# The same glyphs and bars come again and again.
_wide = lru_cache(maxsize=4096)(cell_len)


def cells(text: str) -> int:
    """Terminal cells of a text; most of the screen is ASCII, for which no table is needed."""
    return len(text) if text.isascii() else _wide(text)


def width_of(line: Line) -> int:
    """Cells the line takes."""
    total = 0
    for text, _ in line:
        total += len(text) if text.isascii() else _wide(text)
    return total


def clip(text: str, width: int) -> str:
    """The text cut to at most `width` cells, with an ellipsis where something was cut."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def column(text: str, width: int, align: Align = Align.LEFT) -> str:
    """The text in exactly `width` cells."""
    text = clip(text, width)
    gap = " " * (width - cells(text))
    return gap + text if align is Align.RIGHT else text + gap


def fit(line: Line, width: int, fill: StyleRole = StyleRole.TEXT) -> Line:
    """The line cropped or padded to exactly `width` cells."""
    fitted: list[Span] = []
    room = width
    for span in line:
        text = span.text
        used = len(text) if text.isascii() else _wide(text)
        if used > room:
            if room:
                fitted.append(Span(column(text, room), span.style))
            return tuple(fitted)
        if used:
            fitted.append(span)
        room -= used
    if room:
        fitted.append(Span(" " * room, fill))
    return tuple(fitted)


def spread(left: Line, right: Line, width: int, fill: StyleRole = StyleRole.TEXT) -> Line:
    """`left` at the left edge and `right` at the right one; where both do not fit, `left` is cut."""
    room = width - width_of(right)
    if room < 0:
        return fit(right, width, fill)
    return fit(left, room, fill) + right


def parts(segments: Iterable[Line], width: int, gap: str = "  ") -> Line:
    """As many of the segments, in order, as fit whole in `width` cells; what does not fit is left out."""
    line: list[Span] = []
    used = 0
    for segment in segments:
        need = width_of(segment) + (len(gap) if line else 0)
        if not segment or used + need > width:
            continue
        if line:
            line.append(Span(gap))
        line.extend(segment)
        used += need
    return tuple(line)


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken at spaces where there are any."""
    if width <= 0:
        return []
    lines: list[str] = []
    current = ""
    for word in text.split(" "):
        joined = f"{current} {word}" if current else word
        if cells(joined) <= width:
            current = joined
            continue
        if current:
            lines.append(current)
        pieces = chop_cells(word, width) if cells(word) > width else [word]
        lines.extend(pieces[:-1])
        current = pieces[-1]
    lines.append(current)
    return lines
