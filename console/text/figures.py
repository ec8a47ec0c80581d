"""Numbers as people read them: sizes, counts, durations, rates; all short, all of predictable width."""

from __future__ import annotations

import math
import time

NONE = "–"
# Not from strftime: the screen speaks one language whatever the locale.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int | None) -> str:
    """Bytes in the unit that leaves one to three digits before the point: `45.0 MiB`."""
    if count is None:
        return NONE
    value = float(count)
    for unit in _SIZES:
        # The next unit takes over where this one would round to four digits.
        if abs(value) < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{count} B"
    return f"{value:.0f} {unit}" if abs(value) >= 99.95 else f"{value:.1f} {unit}"


def short_size(amount: int) -> str:
    """Bytes in at most five characters, for narrow columns: `45.0M`, `1.4G`."""
    figure, unit = size(amount).split(" ")
    return figure + unit[0]


def count(number: float) -> str:
    """A whole number with thousands apart: `12,288`; a dash for one too large to be."""
    return f"{round(number):,}" if abs(number) < math.inf else NONE


def brief(number: int) -> str:
    """An integer in at most five characters: `384`, `8192`, `95.1k`, `1.2M`."""
    if number < 10_000:
        return str(number)
    if number < 99_950:
        return f"{number / 1000:.1f}k"
    if number < 999_500:
        return f"{number / 1000:.0f}k"
    return f"{number / 1_000_000:.1f}M"


def span(seconds: float | None) -> str:
    """A duration in its two largest units: `0.21 s`, `3.1 s`, `42 s`, `3 m 20 s`, `2 h 05 m`, `4 d 03 h`."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def short_span(seconds: float | None) -> str:
    """A duration in at most six characters, for narrow columns: `0.21s`, `42s`, `3m20s`, `2h05m`."""
    return span(seconds).replace(" ", "")


def rate(tokens_per_second: float | None) -> str:
    """Tokens a second without the unit: `31.2`, `410`."""
    if tokens_per_second is None:
        return NONE
    return f"{tokens_per_second:.1f}" if tokens_per_second < 99.95 else f"{tokens_per_second:,.0f}"


def percent(part: float, whole: float) -> str:
    """A share of a whole: `8.3 %`, `85 %`; a dash where there is no whole."""
    if whole <= 0:
        return NONE
    share = 100 * part / whole
    return f"{share:.1f} %" if 0 < share < 9.95 else f"{share:.0f} %"


def plural(number: int, word: str) -> str:
    """`1 page`, `720 pages`."""
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def clock_time(at: float) -> str:
    """The local time of a Unix second: `21:04:09`; a dash where no calendar has it."""
    moment = _local(at)
    return time.strftime("%H:%M:%S", moment) if moment is not None else NONE


def day(at: float) -> str:
    """The local day of a Unix second, without the year: `29 Nov`; a dash where no calendar has it."""
    moment = _local(at)
    return f"{moment.tm_mday} {_MONTHS[moment.tm_mon - 1]}" if moment is not None else NONE


def _local(at: float) -> time.struct_time | None:
    try:
        return time.localtime(at)
    except (OverflowError, OSError, ValueError):
        return None
