"""What a body would become if it were decoded: its values and its depth, counted before any object is made.

A body of 16 MiB can hold eight million numbers, which are half a gigabyte of objects and seconds of work under the
interpreter's lock. Counting takes 10 ms a megabyte at most, nearly all of it outside that lock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.http.limits import MAX_DEPTH, MAX_VALUES
from engine.request import RequestError

_CHUNK_BYTES = 1 << 20
_CASE = 0x20
"""The bit in which `[` differs from `{`, and `]` from `}`."""


class Extent(NamedTuple):
    """How large a JSON text is. `values` counts commas and opening brackets outside strings, and is never too low."""

    values: int
    depth: int


def check_extent(body: bytes | bytearray, window: int) -> None:
    """Raises RequestError(400) for a body with more values or levels than any request to a model of that window needs,
    in tokens."""
    limit = MAX_VALUES + window
    opening = body.count(b"{") + body.count(b"[")
    if opening <= MAX_DEPTH and opening + body.count(b",") < limit:
        return
    extent = measure(body)
    if extent.depth > MAX_DEPTH:
        raise _too_complex(f"the body is nested too deeply: {extent.depth:,} levels, at most {MAX_DEPTH} are accepted")
    if extent.values > limit:
        raise _too_complex(f"the body holds {extent.values:,} values, at most {limit:,} are accepted")


def measure(body: bytes | bytearray) -> Extent:
    """The extent of `body`. Where it is not valid JSON the counts hold up to its first fault, where decoders stop."""
    # A run of backslashes begins outside an escape, so pairs are cut from its left. What remains of quotes is real.
    unescaped = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    text = np.frombuffer(unescaped, np.uint8)
    values, depth, deepest, inside = 1, 0, 0, False
    for start in range(0, len(text), _CHUNK_BYTES):
        piece = text[start : start + _CHUNK_BYTES]
        in_string = np.bitwise_xor.accumulate((piece == ord('"')).view(np.uint8))
        if inside:
            in_string ^= 1
        inside = bool(in_string[-1])
        outside = in_string == 0
        folded = piece | _CASE
        opens = (folded == ord("{")) & outside
        closes = (folded == ord("}")) & outside
        values += int(np.count_nonzero((piece == ord(",")) & outside) + np.count_nonzero(opens))
        levels = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
        deepest = max(deepest, depth + int(levels.max()))
        depth += int(levels[-1])
    return Extent(values, deepest)


def _too_complex(message: str) -> RequestError:
    return RequestError(message, status=400, code="body_too_complex")
