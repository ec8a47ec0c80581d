"""Slots, and how far the rows of a sequence are rewound."""

from __future__ import annotations

import pytest

from engine.sequence.request_state import MAIN, SIDE, SequenceState, Slot


def test_slot_0_is_the_main_one() -> None:
    assert [Slot(i, 10).kind for i in range(3)] == [MAIN, SIDE, SIDE]


def test_rewinding() -> None:
    state = SequenceState(0, 100)
    state.extend(10)
    state.rewind(4)
    assert state.rows == 4
    for rows in (-1, 5):
        with pytest.raises(ValueError, match="cannot keep"):
            state.rewind(rows)
