"""How sizes are written in sentences: one spelling for every reason, refusal and plan."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30


def size(count: int) -> str:
    """`count` bytes in words: GiB with at most two decimals, MiB below 1 GiB, KiB below 1 MiB.

    >>> size(15268608737), size(16106127360), size(314572800)
    ('14.22 GiB', '15 GiB', '300 MiB')
    """
    if abs(count) >= GIB:
        return f"{_short(count / GIB, 2)} GiB"
    if abs(count) >= MIB:
        return f"{_short(count / MIB, 1)} MiB"
    return f"{_short(count / 1024, 1)} KiB"


def _short(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
