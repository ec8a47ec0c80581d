"""What several views draw: why fetching failed, keys in a lower border, figures that flow over lines."""

from __future__ import annotations

from collections.abc import Sequence

from console.text.spans import Line, Span, StyleRole, literal, width_of, wrap


def trouble(reason: str | None, width: int) -> tuple[Line, ...]:
    """Why an answer did not come; nothing while all is well."""
    if reason is None:
        return ()
    return tuple(
        (Span("✖ " if number == 0 else "  ", StyleRole.BAD_STRONG), Span(text, StyleRole.BAD))
        for number, text in enumerate(wrap(literal(reason), max(1, width - 2)))
    )


def keys(*pairs: tuple[str, str]) -> Line:
    """Keys with what they do, for a lower border."""
    line: list[Span] = []
    for key, label in pairs:
        line += [Span("  " if line else ""), Span(f"{key} ", StyleRole.KEY), Span(label, StyleRole.DIM)]
    return tuple(line)


def flowed(segments: Sequence[Line], width: int, gap: str = "   ") -> list[Line]:
    """The segments side by side on as many lines as they need; one that is wider than a line stands alone."""
    lines: list[Line] = []
    for segment in segments:
        joined = (*lines[-1], Span(gap), *segment) if lines else segment
        if lines and width_of(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(segment)
    return lines
