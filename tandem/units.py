"""Times as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds as `3.1 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
