"""Whose prompt is read next, in which chunks, and when decoding has its turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.scheduling.prefill import DecodeShare, PrefillCandidate, PrefillDecision, choose_prefill, chunk_end


def run(candidates: dict[int, int], chunk: int, arrivals: dict[int, tuple[int, int]]) -> list[int]:
    """The order in which slots get chunks: `candidates` and, by chunk number, `arrivals` are slot -> prompt tokens."""
    left = dict(candidates)
    order = {slot: i for i, slot in enumerate(candidates)}
    yields: dict[int, int] = {}
    active: int | None = None
    trace: list[int] = []
    while left or len(trace) in arrivals:
        if len(trace) in arrivals:
            slot, tokens = arrivals.pop(len(trace))
            left[slot] = tokens
            order[slot] = len(order)
        views = tuple(PrefillCandidate(s, n, order[s], yields.get(s, 0)) for s, n in left.items())
        decision = choose_prefill(views, active)
        assert decision is not None
        if decision.gave_way is not None:
            yields[decision.gave_way] = yields.get(decision.gave_way, 0) + 1
        active = decision.slot
        trace.append(active)
        left[active] -= chunk
        if left[active] <= 0:
            del left[active]
    return trace


HISTORIES = [
    ("one", {0: 30}, {}, [0, 0, 0]),
    ("oldest first, one at a time", {0: 30, 1: 30}, {}, [0, 0, 0, 1, 1, 1]),
    ("under half of what is left goes first", {0: 50}, {1: (1, 10)}, [0, 1, 0, 0, 0, 0]),
    ("half of what is left does not", {0: 50}, {1: (1, 20)}, [0, 0, 0, 0, 0, 1, 1]),
    ("the other's read ends before the long one goes on", {0: 90}, {1: (1, 30)}, [0, 1, 1, 1] + [0] * 8),
    ("at most twice", {0: 90}, {1: (1, 10), 3: (2, 10), 5: (3, 10)}, [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]),
    ("a shorter one yields in its turn", {0: 200}, {1: (1, 80), 2: (2, 20)}, [0, 1, 2, 2] + [1] * 7 + [0] * 19),
]


@pytest.mark.parametrize(("candidates", "arrivals", "trace"), [h[1:] for h in HISTORIES], ids=[h[0] for h in HISTORIES])
def test_who_reads(candidates: dict[int, int], arrivals: dict[int, tuple[int, int]], trace: list[int]) -> None:
    assert run(candidates, 10, dict(arrivals)) == trace


def test_nothing_to_read() -> None:
    assert choose_prefill((), 3) is None


def test_gave_way_is_named() -> None:
    assert choose_prefill((PrefillCandidate(0, 100, 0, 0), PrefillCandidate(1, 49, 1, 0)), 0) == PrefillDecision(
        1, gave_way=0
    )
    assert choose_prefill((PrefillCandidate(0, 100, 0, 2), PrefillCandidate(1, 49, 1, 0)), 0) == PrefillDecision(
        0, gave_way=None
    )


@given(total=st.integers(1, 2000), chunk=st.integers(1, 300), start=st.integers(0, 1999))
def test_chunks_cover_the_prompt_and_end_at_multiples(total: int, chunk: int, start: int) -> None:
    done = min(start, total - 1)
    while done < total:
        end = chunk_end(done, total, chunk)
        assert done < end <= min(total, done + chunk)
        assert end == total or end % chunk == 0
        done = end


def test_decoding_gets_as_long_as_the_chunk_took_at_one_half() -> None:
    share = DecodeShare(0.5)
    assert share.may_read(decoding=2)
    share.chunk_ran(0.3, decoding=2)
    for _ in range(2):
        assert not share.may_read(decoding=2)
        share.round_ran(0.14)
    assert not share.may_read(decoding=2)
    share.round_ran(0.14)
    assert share.may_read(decoding=2)


def test_no_decoder_is_owed_nothing() -> None:
    share = DecodeShare(0.75)
    share.chunk_ran(1.0, decoding=0)
    assert share.may_read(decoding=1)
    share.chunk_ran(1.0, decoding=1)
    assert not share.may_read(decoding=1)
    assert share.may_read(decoding=0)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_that_would_never_read_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="decode_share must be at least 0 and below 1"):
        DecodeShare(share)


def test_a_round_too_long_counts_for_the_next_chunk() -> None:
    share = DecodeShare(0.5)
    share.chunk_ran(1.0, decoding=1)
    share.round_ran(1.75)
    share.round_ran(1.0)  # owed nothing: no credit
    share.chunk_ran(1.0, decoding=1)
    assert not share.may_read(decoding=1)
    share.round_ran(0.25)
    assert share.may_read(decoding=1)


def test_a_share_of_zero_owes_nothing() -> None:
    share = DecodeShare(0.0)
    share.chunk_ran(5.0, decoding=3)
    assert share.may_read(decoding=3)
