"""Streams go on while prompts are read: the shape of the turns, with a clock that only the passes move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.execution.rows import RowBatch
from engine.protocol import LaneState
from engine.request import PrefillProgress
from tests.support.fake_model import Rig, greedy

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]
LONG = [i % 500 + 1 for i in range(190)]


def timed(r: Rig, row_s: float = 0.001, pass_s: float = 0.004) -> None:
    """Each pass takes time: a base, and more for each row."""

    def before(batch: RowBatch) -> None:
        r.clock.advance(pass_s + row_s * batch.n)

    r.runner.before = before


def kinds(r: Rig) -> str:
    """The passes so far: C for a chunk, R for a decode round."""
    return "".join("R" if max(p.values()) == 1 else "C" for p in r.runner.passes)


def test_chunks_run_back_to_back_where_nothing_decodes(rig: Make) -> None:
    r = rig(parallel=2, prefill_chunk=32)
    timed(r)
    _, sink = r.submit(LONG, 1)
    r.run_until_idle()
    assert kinds(r) == "C" * 6
    assert [e.done for e in sink.of(PrefillProgress)] == [32, 64, 96, 128, 160, 190]


def test_a_stream_waits_for_one_chunk_at_most(rig: Make) -> None:
    """A chunk of 32 rows takes 36 ms and a round 5 ms, so a share of one half is 7.2 rounds a chunk: eight after the
    first, and one less while what they took too much lasts."""
    r = rig(parallel=2, prefill_chunk=32)
    timed(r)
    _, stream = r.submit(PROMPT, 150)
    r.turns(3)
    _, long = r.submit(LONG, 2)
    r.turns_until(lambda: long.events and not r.engine._serving().prefilling())
    reads = kinds(r).lstrip("C").lstrip("R")
    assert "CC" not in reads
    assert [len(rounds) for rounds in reads.split("C")[1:-1]] == [8, 7, 7, 7, 7]
    r.run_until_idle()
    assert stream.tokens() == greedy(PROMPT, 150)
    assert long.tokens() == greedy(LONG, 2)


@pytest.mark.parametrize(
    ("share", "rounds"), [(0.0, [1, 1, 1, 1, 1]), (0.25, [3, 2, 3, 2, 2]), (0.75, [22, 22, 21, 22, 21])]
)
def test_the_decode_share_sets_the_rounds_between_chunks(rig: Make, share: float, rounds: list[int]) -> None:
    """12 ms of rounds are owed a chunk at a quarter, 108 at three."""
    r = rig(parallel=2, prefill_chunk=32, config=lambda c: replace(c, decode_share=share))
    timed(r)
    r.submit(PROMPT, 200)
    r.turns(3)
    r.submit(LONG, 1)
    serving = r.engine._serving()
    r.turns_until(lambda: not serving.queue and not serving.prefilling() and "CR" in kinds(r)[1:])
    between = kinds(r).lstrip("C").lstrip("R").split("C")[1:-1]
    assert [len(b) for b in between] == rounds


def test_a_long_read_gives_way_to_a_short_one_twice(rig: Make) -> None:
    r = rig(parallel=4, prefill_chunk=16)
    _, long = r.submit(LONG, 5)
    r.turns(2)
    shorts = []
    for i in range(3):
        prompt = [i + 5] * 20
        shorts.append((prompt, r.submit(prompt, 5)[1]))
        r.turns(1)
    lanes = r.engine.health().lanes
    assert lanes[0].state is LaneState.YIELDED
    assert lanes[0].phase_text == "Gave way at 32 of 190"
    assert lanes[0].reason is not None
    assert lanes[0].reason.startswith("gives way to the shorter prompt in slot")
    r.run_until_idle()
    for prompt, sink in shorts:
        assert sink.tokens() == greedy(prompt, 5)
    assert long.tokens() == greedy(LONG, 5)
    slots = [next(iter(p)) for p in r.runner.passes if max(p.values()) > 1]
    order = [slot for i, slot in enumerate(slots) if i == 0 or slots[i - 1] != slot]
    assert order == [0, 1, 2, 0, 3]


def test_readers_take_turns_by_arrival_and_say_so(rig: Make) -> None:
    r = rig(parallel=2, prefill_chunk=16)
    r.submit(LONG, 2)
    r.submit(LONG[::-1], 2)
    r.turns(2)
    r.clock.advance(0.2)
    r.turns(1)
    lanes = r.engine.health().lanes
    assert [lane.state for lane in lanes] == [LaneState.PREFILLING, LaneState.PREFILLING]
    assert [lane.reason for lane in lanes] == [None, "waits while slot 0 reads its prompt (142 tokens to go)"]
    assert [lane.phase_text for lane in lanes] == ["Reading 48 of 190, 240 tok/s", "Reading 0 of 190"]
