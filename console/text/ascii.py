"""Every glyph of the screen in ASCII, cell for cell: for terminals and fonts that show nothing else."""

from __future__ import annotations

from functools import lru_cache

from console.text.spans import cells

_OTHER = "?"
_GLYPHS = {
    # Frames and rules.
    "─": "-", "━": "=", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▎": "|", "▌": ">", "▸": ">",
    "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+", "╌": "-", "┄": "-", "┆": "|", "║": "|", "═": "~", "┈": ":",
    # Fills, from full to nothing.
    "█": "#", "▓": "%", "▚": "x", "▞": "/", "▣": "@", "▤": "=", "▥": "|", "▒": "*", "░": ":", "■": "#", "□": "o",
    "·": ".", "▁": "_", "▂": ".", "▃": ",", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "▦": "&", "▧": "\\", "▨": "/",
    "▩": "&", "▉": "#", "▊": "#", "▋": "#", "▍": "|", "▏": "|", "▐": "|", "▀": "\"",
    # Signs of states.
    "●": "*", "○": "o", "◌": "~", "◑": "%", "◐": "%", "◔": "?", "◕": "!", "◉": "@", "✖": "x", "✔": "v", "✓": "v",
    "↺": "<", "▼": "v", "▲": "^", "△": "A", "▽": "V", "▶": ">", "◀": "<", "‖": "\"", "◇": "+", "◆": "*", "↳": "\\",
    "⚠": "!", "✗": "x", "↻": "<", "⏸": "=", "⏵": ">", "◼": "#", "◻": "o", "★": "*", "☐": "o", "☑": "x", "✕": "x",
    # Typography.
    "…": "~", "–": "-", "—": "-", "×": "x", "“": "\"", "”": "\"", "‘": "'", "’": "'", "≈": "~", "≤": "<", "≥": ">",
    "↑": "^", "↓": "v", "←": "<", "→": ">", "⇧": "^", "↵": "<", "⏎": "<", "•": "*", "±": "~", "µ": "u", "Δ": "d",
    "⁰": "0", "¹": "1", "²": "2", "³": "3", "⁴": "4", "⁵": "5", "⁶": "6", "⁷": "7", "⁸": "8", "⁹": "9",
    "\u00a0": " ",
}  # fmt: skip
_TABLE = str.maketrans(_GLYPHS)


def ascii_text(text: str) -> str:
    """The text in as many cells, without a character beyond ASCII; what has no likeness becomes `?`."""
    return text if text.isascii() else _translated(text)


def likeness(character: str) -> str | None:
    """The glyph's stand-in in ASCII; None where it has none."""
    return _GLYPHS.get(character)


@lru_cache(maxsize=4096)
def _translated(text: str) -> str:
    text = text.translate(_TABLE)
    if text.isascii():
        return text
    return "".join(character if character.isascii() else _OTHER * cells(character) for character in text)
