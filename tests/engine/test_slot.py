"""A sequence's state: rows that grow, are rewound, restored, and committed along a path, recurrent part or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.slot import MAIN, SIDE, SequenceState, Slot
from tests.support.fake_model import FakeRunner


class Counting:
    """A recurrent part that remembers the path it advanced along."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def snapshot(self) -> object:
        return list(self.steps)

    def restore(self, copy: object) -> None:
        assert isinstance(copy, list)
        self.steps = list(copy)

    def commit(self, path: Sequence[int]) -> None:
        self.steps += path


class Moves(FakeRunner):
    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[int, int, list[int]]] = []

    def commit_path(self, slot: int, start: int, path: Sequence[int]) -> None:
        self.moved.append((slot, start, list(path)))


def test_slot_0_is_the_main_one() -> None:
    assert [Slot(i, 10).kind for i in range(3)] == [MAIN, SIDE, SIDE]


def test_rows_are_restored_to_a_snapshot() -> None:
    state = SequenceState(0, 100, recurrent=Counting())
    state.extend(5)
    copy = state.snapshot()
    state.commit([0, 1, 2], Moves())
    assert state.rows == 8
    state.restore(copy)
    assert state.rows == 5
    assert isinstance(state.recurrent, Counting)
    assert state.recurrent.steps == []
    state.rewind(0)
    with pytest.raises(ValueError, match="a snapshot at row 5 is ahead of the 0 rows held"):
        state.restore(copy)


def test_only_a_path_with_gaps_moves_rows() -> None:
    runner = Moves()
    state = SequenceState(2, 100)
    state.extend(10)
    state.commit([0, 1], runner)
    assert (state.rows, runner.moved) == (12, [])
    state.commit([0, 2, 5], runner)
    assert (state.rows, runner.moved) == (15, [(2, 12, [0, 2, 5])])


def test_rewinding() -> None:
    state = SequenceState(0, 100)
    state.extend(10)
    state.rewind(4)
    assert state.rows == 4
    for rows in (-1, 5):
        with pytest.raises(ValueError, match="cannot keep"):
            state.rewind(rows)


def test_a_recurrent_state_is_never_rewound_to_its_middle() -> None:
    state = SequenceState(0, 100, recurrent=Counting())
    state.extend(10)
    with pytest.raises(ValueError, match="cannot be rewound from row 10 to 4"):
        state.rewind(4)
    state.rewind(10)
    state.rewind(0)
