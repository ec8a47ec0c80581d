"""The one interface of everything that is kept of a conversation. Each level is a file of this folder.

A key carries the namespace of whoever owns the conversation: nothing is ever matched across namespaces. A level says
how much of a prompt it holds only after comparing the tokens element by element.
"""

from __future__ import annotations

from typing import Protocol

from engine import protocol
from engine.sequence.cache_key import CacheKey
from engine.sequence.request_state import Slot


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
