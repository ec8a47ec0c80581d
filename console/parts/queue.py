"""What each waiting request says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import overload

from console.screen import QueueView
from console.spans import literal
from console.words import WAIT_WORDS, Word
from engine.protocol import Queued, WaitState


class Waiting(Sequence[QueueView]):
    """The queue as it is shown, made when it is first looked at: most views show none of its hundreds of entries."""

    def __init__(self, entries: Sequence[Queued]) -> None:
        self._entries = entries
        self._made: tuple[QueueView, ...] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Waiting) and (self._entries is other._entries or self._entries == other._entries)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> QueueView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[QueueView, ...]: ...
    def __getitem__(self, index: int | slice) -> QueueView | tuple[QueueView, ...]:
        if self._made is None:
            self._made = tuple(map(queued, self._entries))
        return self._made[index]


def queued(entry: Queued) -> QueueView:
    word, reason = _why(entry.state, entry.home, entry.reason)
    return QueueView(
        literal(entry.id),
        literal(entry.client),
        word,
        reason,
        entry.prompt_tokens,
        entry.max_tokens,
        entry.since_s,
        entry.home,
    )


# Most of a long queue waits for the same few things.
@lru_cache(maxsize=1024)
def _why(state: WaitState, home: int | None, reason: str) -> tuple[Word, str]:
    word = WAIT_WORDS[state]
    if state is WaitState.HOME and home is not None:
        word = Word(word.glyph, f"waits for slot {home}, its own", word.tone)
    return word, literal(reason)
