"""Whose tokens: the key by which conversations are kept and found again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class CacheKey:
    """The tokens of a prompt or conversation (int32), and whose they are."""

    namespace: str
    tokens: NDArray[np.int32]


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many leading elements `a` and `b` share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
