"""A request writes what it writes alone, whatever runs or is read beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.execution.rows import RowBatch
from engine.execution.sampling import Sampler
from engine.memory.kv.host_vm import PAGE_BYTES
from engine.request import Done, Finished, SamplingParams
from tests.support.fake_model import ROW_BYTES, Rig, greedy, next_logits

Make = Callable[..., Rig]


def prompts(count: int, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 512, rng.integers(2, 120)).tolist() for _ in range(count)]


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_greedy_texts_equal_alone(rig: Make, slots: int) -> None:
    r = rig(parallel=slots, prefill_chunk=16)
    asked = prompts(12)
    sinks = []
    for i, prompt in enumerate(asked):
        sinks.append(r.submit(prompt, 50 + i % 5)[1])
        r.turns(i % 4)  # staggered: some are read while others decode
    r.run_until_idle()
    for i, (prompt, sink) in enumerate(zip(asked, sinks, strict=True)):
        assert sink.tokens() == greedy(prompt, 50 + i % 5)
        assert sink.of(Done) == [Done(len(prompt), 0, 50 + i % 5)]
    widest = max(len(p) for p in r.runner.passes)
    assert widest == slots


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_seeded_samples_equal_alone(rig: Make, slots: int) -> None:
    """One seeded prompt eight times at once, then again over a warm cache."""
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=11, frequency_penalty=0.2)
    prompt = prompts(1)[0] + [7] * 30
    path = list(prompt)
    sampler = Sampler(params, choice=0, prompt_len=len(prompt), logprobs=None)
    for _ in range(12):
        path.append(sampler.sample(next_logits(path), path).token)
    r = rig(parallel=slots)
    for _ in range(2):
        sinks = [r.submit(prompt, 12, sampling=params)[1] for _ in range(8)]
        r.run_until_idle()
        assert all(sink.tokens() == path[len(prompt) :] for sink in sinks)
    assert r.engine.health().cache["resident"].hits > 0


def test_choices_of_one_request_differ_and_repeat(rig: Make) -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    prompt = prompts(1)[0]
    texts = []
    for slots in (1, 2, 4):
        r = rig(parallel=slots)
        _, sink = r.submit(prompt, 9, n=3, sampling=params)
        r.run_until_idle()
        texts.append([sink.text(choice) for choice in range(3)])
        assert sorted(f.choice for f in sink.of(Finished)) == [0, 1, 2]
        assert sink.of(Done)[0].completion_tokens == 27
        assert len(set(texts[-1])) == 3
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_choices_of_one_request_read_their_prompt_once(rig: Make, slots: int) -> None:
    """Each later choice computes the last prompt row alone, whether its sibling is in another slot or has ended."""
    params = SamplingParams(temperature=1.0, seed=3)
    prompt = prompts(1)[0] + [7] * 30
    alone = rig(parallel=1)
    _, expected = alone.submit(prompt, 9, n=3, sampling=params)
    alone.run_until_idle()
    r = rig(parallel=slots, prefill_chunk=16)
    _, sink = r.submit(prompt, 9, n=3, sampling=params)
    r.run_until_idle()
    assert [sink.text(choice) for choice in range(3)] == [expected.text(choice) for choice in range(3)]
    rows = sum(sum(shares.values()) for shares in r.runner.passes)
    assert rows == len(prompt) + 2 + 3 * (9 - 1)
    assert sink.of(Done)[0].cached_tokens == 0


def test_a_choice_on_a_shorter_match_takes_its_siblings_rows(rig: Make) -> None:
    """The first choice resumes a conversation; the second has the head of another in its slot."""
    r = rig(parallel=2)
    head = prompts(1)[0]
    for first_user_end, tail in ((0, [8, 9]), (len(head), [5] * 40)):
        r.submit(head + tail, 4, first_user_end=first_user_end)
        r.run_until_idle()
    r.runner.passes.clear()
    _, sink = r.submit(head + [5] * 40 + [6], 4, first_user_end=len(head), n=2)
    r.run_until_idle()
    assert [sink.tokens(choice) for choice in range(2)] == [greedy(head + [5] * 40 + [6], 4)] * 2
    assert sum(sum(shares.values()) for shares in r.runner.passes) == 2 + 2 * (4 - 1)


def test_two_identical_prompts_in_one_turn(rig: Make) -> None:
    r = rig(parallel=2, max_len=512)
    prompt = list(range(1, 301))
    sinks = [r.submit(prompt, 6, first_user_end=200)[1] for _ in range(2)]
    r.engine.turn()
    assert r.engine.health().parallel.running == 2
    r.run_until_idle()
    assert [s.tokens() for s in sinks] == [greedy(prompt, 6)] * 2


def test_decode_rounds_share_one_pass(rig: Make) -> None:
    r = rig(parallel=3)
    for prompt in ([1, 2], [3, 4], [5, 6]):
        r.submit(prompt, 20)
    r.run_until_idle()
    rounds = r.engine.health().parallel.rounds
    assert dict.fromkeys(range(3), 1) in r.runner.passes
    assert rounds["3"] > 10
    assert r.engine.health().parallel.peak_decoding == 3


def test_one_request_alone_needs_no_pass_more_with_four_slots(rig: Make) -> None:
    passes = []
    for slots in (1, 4):
        r = rig(parallel=slots)
        r.submit(prompts(1)[0], 20)
        r.run_until_idle()
        passes.append(r.runner.passes)
    assert passes[0] == passes[1]


def test_a_round_writes_backed_rows_alone_without_a_margin(rig: Make) -> None:
    page = PAGE_BYTES // ROW_BYTES
    r = rig(parallel=2, max_len=3 * page, prefill_chunk=page, config=lambda c: replace(c, kv_margin_rows=0))
    unbacked: list[tuple[int, int]] = []

    def look(batch: RowBatch) -> None:
        rows = zip(batch.slot.tolist(), batch.kv_row.tolist(), strict=True)
        unbacked.extend((slot, row) for slot, row in rows if row >= r.pool.committed_rows(slot))

    r.runner.before = look
    for length in (page - 3, page - 5):
        r.submit([1] * length, 9)
    r.run_until_idle()
    assert unbacked == []
    assert any(len(p) == 2 for p in r.runner.passes)
