"""Packing: every row's place, prefix and path, for chains, trees and their mixtures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.rows import ROOT, RowBatch, SlotRows, pack


def path_of(batch: RowBatch, row: int) -> list[int]:
    """All KV rows that a row sees, in order of depth."""
    own = batch.ancestors[batch.ancestor_start[row] : batch.ancestor_start[row + 1]].tolist()
    return [*range(batch.prefix[row]), *own]


def test_plain_decode_of_two_slots() -> None:
    batch = pack([SlotRows(3, 10, [7], logits=(0,)), SlotRows(1, 4, [8], logits=(0,))])
    assert batch.n == 2
    assert batch.slot.tolist() == [3, 1]
    assert batch.token.tolist() == [7, 8]
    assert batch.position.tolist() == batch.kv_row.tolist() == [10, 4]
    assert batch.logit_rows.tolist() == [0, 1]


def test_a_tree_beside_a_chunk() -> None:
    tree = SlotRows(0, 5, [1, 2, 3, 4], parents=(ROOT, 0, 0, 1), logits=(0, 1, 2, 3))
    chunk = SlotRows(2, 8, [5, 6, 7], logits=(2,))
    batch = pack([chunk, tree])
    assert [path_of(batch, 3 + i) for i in range(4)] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5, 7],
        [0, 1, 2, 3, 4, 5, 6, 8],
    ]
    assert batch.position.tolist() == [8, 9, 10, 5, 6, 6, 7]
    assert batch.kv_row.tolist() == [8, 9, 10, 5, 6, 7, 8]
    assert batch.logit_rows.tolist() == [2, 3, 4, 5, 6]


@given(
    shares=st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 12), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_a_chain_given_by_its_parents_is_the_same_chain(shares: list[tuple[int, int, bool]]) -> None:
    plain = [SlotRows(i, start, [1] * n, logits=(n - 1,)) for i, (start, n, _) in enumerate(shares)]
    spelt = [
        SlotRows(
            s.slot, s.start, s.tokens, parents=range(-1, len(s.tokens) - 1) if shares[i][2] else None, logits=s.logits
        )
        for i, s in enumerate(plain)
    ]
    a, b = pack(plain), pack(spelt)
    for row in range(a.n):
        assert path_of(a, row) == path_of(b, row)
    for name in ("slot", "token", "position", "kv_row", "logit_rows"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == np.int32


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([SlotRows(0, 0, [1]), SlotRows(0, 5, [2])], "two shares"),
        ([SlotRows(0, 0, [])], "slot 0 has an empty share"),
        ([SlotRows(0, 0, [1, 2], parents=(ROOT, 1))], "row 1 has parent 1"),
        ([SlotRows(0, 0, [1, 2], parents=(ROOT,))], "1 parents for 2 rows"),
        ([SlotRows(0, 0, [1], parents=(-2,))], "row 0 has parent -2"),
    ],
)
def test_shares_that_make_no_sense(shares: list[SlotRows], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pack(shares)
