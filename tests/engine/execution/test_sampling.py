"""Draws against the plain definition of each step, and the sameness of a draw wherever it happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.execution.runner import sample_all
from engine.execution.sampling import NonFiniteLogits, Sampler, token_logprob, uniform
from engine.request import SamplingParams
from kernels.sampling import GREEDY, SamplingSpec, sampling_spec, top_ids

VOCAB = 1000
Row = NDArray[np.float32]


def row(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> Row:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def draw(logits: Row, path: Sequence[int], params: SamplingParams, choice: int = 0, prompt_len: int = 1) -> int:
    return Sampler(params, choice=choice, prompt_len=prompt_len, logprobs=None).sample(logits, path).token


def kept_by_definition(logits: Row, params: SamplingParams) -> list[int]:
    """The tokens that the cuts keep, most likely first, straight from their definitions."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weight = {i: math.exp((float(logits[i]) - float(logits[order[0]])) / params.temperature) for i in order}
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        total = sum(weight[i] for i in order)
        mass, kept = 0.0, []
        for i in order:
            kept.append(i)
            mass += weight[i]
            if mass >= params.top_p * total:
                break
        order = kept
    return [i for i in order if weight[i] >= params.min_p]


CUTS = [
    SamplingParams(top_k=1),
    SamplingParams(top_k=40),
    SamplingParams(top_k=5000),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999, temperature=2.0),
    SamplingParams(top_p=0.0),
    SamplingParams(min_p=0.1),
    SamplingParams(top_k=50, top_p=0.9, temperature=0.7),
    SamplingParams(top_k=50, top_p=0.9, min_p=0.05),
    SamplingParams(top_p=0.8, min_p=0.2),
]


@pytest.mark.parametrize("params", CUTS, ids=repr)
def test_only_kept_tokens_are_drawn_and_all_of_them_can_be(params: SamplingParams) -> None:
    for seed in range(3):
        logits = row(seed)
        kept = kept_by_definition(logits, params)
        sampled = {draw(logits, range(position), params) for position in range(1, 200)}
        assert sampled <= set(kept)
        assert kept[0] in sampled
        if len(kept) <= 4:
            assert sampled == set(kept)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1], np.float32))
    for params in (
        SamplingParams(),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.99999),
        SamplingParams(min_p=1e-9),
    ):
        counts = np.bincount([draw(logits, range(n), params) for n in range(1, 2001)], minlength=4) / 2000
        assert np.abs(counts - [0.5, 0.2, 0.2, 0.1]).max() < 0.05


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = row(1)
    logits[[17, 400, 999]] = 50.0
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1e-8), SamplingParams(top_k=1)):
        assert draw(logits, [5], params) == 17


def test_noise_is_keyed_by_seed_choice_and_position() -> None:
    noises = {uniform(s, c, p) for s in range(5) for c in range(5) for p in range(5)}
    assert len(noises) == 125
    assert all(0.0 <= n < 1.0 for n in noises)
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert uniform(-1, 0, 9) == uniform(2**64 - 1, 0, 9)


def test_a_draw_does_not_depend_on_what_was_drawn_elsewhere_or_where_the_row_lies() -> None:
    params = SamplingParams(temperature=0.8, seed=5)
    rows = np.stack([row(i, vocab=1003) for i in range(5)])
    alone = [draw(rows[i].copy(), [1] * 9, params) for i in range(5)]
    assert [draw(rows[i], [1] * 9, params) for i in reversed(range(5))] == alone[::-1]


def test_penalties_and_bias_follow_their_formulas() -> None:
    logits = np.array([2.0, -1.0, 0.5, 1.9, 0.0], np.float32)
    path = [0, 1, 3, 3]  # prompt 0, 1; generated 3, 3
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=2.0,
        presence_penalty=0.25,
        frequency_penalty=0.1,
        logit_bias=((4, 0.3), (2, -0.1), (4, 0.2)),
    )
    sampler = Sampler(params, choice=0, prompt_len=2, logprobs=None)
    expected = np.array([1.0, -2.0, 0.4, 0.95 - 0.25 - 0.2, 0.5], np.float32)
    assert np.allclose(sampler._shape(logits, path), expected)
    assert logits[0] == 2.0  # the row itself is left alone
    assert sampler.sample(logits, path).token == 0
    # The same path grown by one call or by several is the same history.
    stepwise = Sampler(params, choice=0, prompt_len=2, logprobs=None)
    for end in range(2, 5):
        shaped = stepwise._shape(logits, path[:end])
    assert np.array_equal(shaped, sampler._shape(logits, path))


def test_a_bias_bans_and_forces() -> None:
    logits = row(3)
    best = int(logits.argmax())
    banned = SamplingParams(temperature=0.0, logit_bias=((best, -100.0),))
    assert draw(logits, [1], banned) == int(top_ids(logits, 2)[1])
    forced = SamplingParams(temperature=1.0, logit_bias=((123, 100.0),))
    assert draw(logits, [1], forced) == 123


def test_log_probabilities_are_the_log_softmax() -> None:
    logits = row(4)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    got = token_logprob(logits, 77, 5)
    assert got.token == 77
    assert got.logprob == pytest.approx(exact[77], abs=1e-5)
    order = np.argsort(-exact, kind="stable")[:5]
    assert [token for token, _ in got.top] == order.tolist()
    assert [value for _, value in got.top] == pytest.approx(exact[order].tolist(), abs=1e-5)


def test_log_probabilities_ignore_the_cuts_and_stay_finite() -> None:
    logits = row(5)
    params = SamplingParams(top_k=1, temperature=0.3, logit_bias=((9, -100.0),))
    sampled = Sampler(params, choice=0, prompt_len=1, logprobs=5).sample(logits, [1])
    assert sampled.logprob == token_logprob(logits, sampled.token, 5)
    assert all(math.isfinite(value) for _, value in sampled.logprob.top)
    assert Sampler(params, choice=0, prompt_len=1, logprobs=0).sample(logits, [1]).logprob.top == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=5)], ids=repr
)
def test_rows_that_are_not_finite_are_refused(bad: float, params: SamplingParams) -> None:
    logits = row(6)
    logits[500] = bad
    with pytest.raises(NonFiniteLogits, match="position 3"):
        draw(logits, [1, 2, 3], params)


def test_a_huge_row_draws_within_its_vocabulary() -> None:
    logits = np.full(100_000, -30.0, np.float32)
    logits[[0, 99_999]] = 5.0
    sampled = {draw(logits, range(n), SamplingParams()) for n in range(1, 60)}
    assert sampled == {0, 99_999}


def test_a_row_alone_decides_unless_more_is_asked_for() -> None:
    def rule(params: SamplingParams, logprobs: int | None = None) -> SamplingSpec | None:
        return Sampler(params, choice=2, prompt_len=1, logprobs=logprobs).draw(9)

    greedy = SamplingParams(temperature=0.0)
    assert rule(greedy) is rule(SamplingParams(top_k=1)) is GREEDY
    sampled = SamplingParams(temperature=0.7, top_k=9, top_p=0.5, min_p=0.1, seed=4)
    assert rule(sampled) == sampling_spec(uniform(4, 2, 9), 0.7, top_k=9, top_p=0.5, min_p=0.1)
    for params in (greedy, sampled):
        assert rule(params, logprobs=0) is None
        assert rule(replace(params, logit_bias=((3, 1.0),))) is None
        assert rule(replace(params, presence_penalty=0.5)) is None


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=3), *CUTS], ids=repr)
def test_a_runner_draws_what_the_sampler_does(params: SamplingParams) -> None:
    rows = np.stack([row(i) for i in range(4)])
    rows[1, 7] = np.nan
    rows[2, 7] = np.inf
    samplers = [Sampler(params, choice=i, prompt_len=1, logprobs=None) for i in range(4)]
    outcomes = sample_all(rows, [s.draw(5 + i) for i, s in enumerate(samplers)])
    assert outcomes[1:3] == [-1, -1]
    for i in (0, 3):
        path = list(range(5 + i))
        token = outcomes[i]
        assert isinstance(token, int)
        assert samplers[i].take(token, path) == samplers[i].sample(rows[i], path)
    with pytest.raises(NonFiniteLogits, match="position 6"):
        samplers[1].take(-1, range(6))
    kept = sample_all(rows, [None, GREEDY, None, GREEDY])
    assert kept[0] is not rows
    assert np.array_equal(kept[0], rows[0])
    assert kept[3] == rows[3].argmax()
