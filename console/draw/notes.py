"""Short remarks that several views make: what went wrong with fetching, and keys that a lower border names."""

from __future__ import annotations

from console.spans import Line, Span, literal, wrap
from console.tones import Tone


def trouble(reason: str | None, width: int) -> tuple[Line, ...]:
    """Why an answer did not come; nothing while all is well."""
    if reason is None:
        return ()
    return tuple(
        (Span("✖ " if number == 0 else "  ", Tone.BAD_STRONG), Span(text, Tone.BAD))
        for number, text in enumerate(wrap(literal(reason), max(1, width - 2)))
    )


def keys(*pairs: tuple[str, str]) -> Line:
    """Keys with what they do, for a lower border."""
    line: list[Span] = []
    for key, label in pairs:
        line += [Span("  " if line else ""), Span(f"{key} ", Tone.KEY), Span(label, Tone.DIM)]
    return tuple(line)
