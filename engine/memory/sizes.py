"""How sizes are written in sentences: one spelling for every reason, refusal and plan."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def size(count: int) -> str:
    """`count` bytes in words: GiB with at most two decimals, MiB below 1 GiB, and so on down.

    >>> size(15268608737), size(16106127360), size(314572800)
    ('14.22 GiB', '15 GiB', '300 MiB')
    """
    if abs(count) >= GIB:
        return f"{_short(count / GIB, 2)} GiB"
    if abs(count) >= MIB:
        return f"{_short(count / MIB, 1)} MiB"
    if abs(count) >= KIB:
        return f"{_short(count / KIB, 1)} KiB"
    return f"{count} B"


def _short(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")
