"""The one interface of everything that is kept of a conversation. Each level is a file of this folder.

A key carries the namespace of whoever owns the conversation: nothing is ever matched across namespaces. A level says
how much of a prompt it holds only after comparing the tokens element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine import protocol
from engine.slot import Slot


@dataclass(frozen=True, slots=True, eq=False)
class CacheKey:
    """The tokens of a prompt or conversation (int32), and whose they are."""

    namespace: str
    tokens: NDArray[np.int32]


class CacheLevel(Protocol):
    """What one level does for the loop. Only the engine thread calls it."""

    @property
    def name(self) -> str: ...

    def match(self, slot: Slot, key: CacheKey) -> int:
        """Leading tokens of `key` that this level could make valid in `slot`."""
        ...

    def restore(self, slot: Slot, key: CacheKey, limit: int) -> int:
        """Make the leading rows of `key` valid in `slot`, at most `limit` of them; return how many are. The bytes are
        exactly those that were written."""
        ...

    def keep(self, slot: Slot, key: CacheKey, prompt: int) -> None:
        """The request on `slot` ended with the rows of `key` valid, the first `prompt` of them a client's prompt."""
        ...

    def stats(self) -> protocol.CacheLevel: ...


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many leading elements `a` and `b` share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
