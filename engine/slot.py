"""A slot: one reserved window of KV rows, the state of the sequence in it, and who runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.runner import Runner

if TYPE_CHECKING:
    from engine.job import Choice

MAIN = "main"
SIDE = "side"


class RecurrentState(Protocol):
    """The part of a sequence's state that is not KV rows: one state and convolution tail a recurrent layer. It cannot
    be rewound, so its copies are anchors."""

    def snapshot(self) -> object:
        """A copy of the state as it is now."""
        ...

    def restore(self, copy: object) -> None: ...

    def commit(self, path: Sequence[int]) -> None:
        """Advance along the accepted path of the last pass."""
        ...


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A sequence's state at one length: how many KV rows were valid, and a copy of the recurrent part."""

    rows: int
    recurrent: object | None


@dataclass(slots=True)
class SequenceState:
    """KV rows `[0, rows)` of a slot, valid now, and an opaque recurrent part."""

    slot: int
    window: int
    rows: int = 0
    recurrent: RecurrentState | None = None

    def snapshot(self) -> StateSnapshot:
        return StateSnapshot(self.rows, None if self.recurrent is None else self.recurrent.snapshot())

    def restore(self, snapshot: StateSnapshot) -> None:
        """Go back to a snapshot. The KV rows past it are no longer valid; those before it were never overwritten."""
        if snapshot.rows > self.rows:
            raise ValueError(
                f"slot {self.slot}: a snapshot at row {snapshot.rows} is ahead of the {self.rows} rows held"
            )
        if self.recurrent is not None:
            self.recurrent.restore(snapshot.recurrent)
        self.rows = snapshot.rows

    def rewind(self, rows: int) -> None:
        """Keep the first `rows` rows alone. A recurrent part can only be reset to nothing or restored."""
        if not 0 <= rows <= self.rows:
            raise ValueError(f"slot {self.slot}: cannot keep {rows} of {self.rows} rows")
        if self.recurrent is not None and rows not in (0, self.rows):
            raise ValueError(f"slot {self.slot}: a recurrent state cannot be rewound from row {self.rows} to {rows}")
        self.rows = rows

    def extend(self, rows: int) -> None:
        """A chain of `rows` rows was computed behind the valid ones."""
        self.rows += rows

    def commit(self, path: Sequence[int], runner: Runner) -> None:
        """Keep the accepted `path` (indices within the pass, by depth) of a tree computed behind the valid rows."""
        if tuple(path) != tuple(range(len(path))):
            runner.commit_path(self.slot, self.rows, path)
        if self.recurrent is not None:
            self.recurrent.commit(path)
        self.rows += len(path)


@dataclass(slots=True)
class Slot:
    """One slot of the engine. `last_used` is the clock when its last request ended; `epoch` grows whenever what it
    holds changes, so that whoever compared a prompt with it knows when to compare again. `claimed` while a request is
    being admitted to it: what it holds is not up for reclaim then."""

    id: int
    window: int
    state: SequenceState = field(init=False)
    running: Choice | None = None
    claimed: bool = False
    last_used: float = 0.0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.state = SequenceState(self.id, self.window)

    @property
    def kind(self) -> str:
        return MAIN if self.id == 0 else SIDE
