"""The waiting requests: there may be hundreds, of which a screen shows a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, overload

from console.text import figures
from console.text.spans import literal
from console.viewmodel.labels import WAIT_LABELS, StatusLabel
from engine.protocol import Queued, WaitState

_AGE = attrgetter("since_s")


class WaitReason(NamedTuple):
    """What a request waits for: the label of its state, and the sentence that the engine gives as the reason."""

    label: StatusLabel
    reason: str


class QueueView(NamedTuple):
    """A waiting request. Its figures are formatted only when it is shown."""

    id: str
    client: str
    why: WaitReason
    prompt_tokens: int
    max_tokens: int
    since_s: float
    home: int | None

    @property
    def label(self) -> StatusLabel:
        return self.why.label

    @property
    def reason(self) -> str:
        return self.why.reason

    @property
    def since(self) -> str:
        """How long it waits."""
        return figures.span(self.since_s)

    @property
    def prompt(self) -> str:
        """How long its prompt is."""
        return f"{figures.count(self.prompt_tokens)} tok"


class WaitingQueue(Sequence[QueueView]):
    """The queue as it is shown. Entries are built on access; ids, reasons and sums need no entry."""

    def __init__(self, entries: Sequence[Queued] = ()) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueueView]:
        return map(queued, self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitingQueue) and (self._entries is other._entries or self._entries == other._entries)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> QueueView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[QueueView, ...]: ...
    def __getitem__(self, index: int | slice) -> QueueView | tuple[QueueView, ...]:
        if isinstance(index, slice):
            return tuple(map(queued, self._entries[index]))
        return queued(self._entries[index])

    def ids(self) -> list[str]:
        """The id of each."""
        return [literal(entry.id) for entry in self._entries]

    def whys(self) -> list[WaitReason]:
        """What each waits for."""
        return [_why(entry.state, entry.home, entry.reason) for entry in self._entries]

    def prompt_tokens(self) -> int:
        """The prompts of all of them together."""
        return sum(entry.prompt_tokens for entry in self._entries)

    def by_age(self) -> WaitingQueue:
        """The longest wait first."""
        return WaitingQueue(sorted(self._entries, key=_AGE, reverse=True))

    def matching(self, wanted: Callable[[QueueView], bool]) -> WaitingQueue:
        """Only those that `wanted` says yes to."""
        return WaitingQueue([entry for entry in self._entries if wanted(queued(entry))])


def queued(entry: Queued) -> QueueView:
    return QueueView(
        literal(entry.id),
        literal(entry.client),
        _why(entry.state, entry.home, entry.reason),
        entry.prompt_tokens,
        entry.max_tokens,
        entry.since_s,
        entry.home,
    )


# In a long queue most entries have one of a few reasons.
@lru_cache(maxsize=1024)
def _why(state: WaitState, home: int | None, reason: str) -> WaitReason:
    label = WAIT_LABELS[state]
    if state is WaitState.HOME and home is not None:
        label = StatusLabel(label.glyph, f"waits for slot {home}, its own", label.style)
    return WaitReason(label, literal(reason))
