"""The rule of drawing: what its cuts keep, against their definitions, and the device's reference against the host."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.gpu import argmax as argmax_kernel
from kernels.gpu import reference
from kernels.gpu.launch import INTERPRETED
from kernels.gpu.sampling import Choosing, SamplingBuffers, sample_rows
from kernels.sampling import (
    FIELDS,
    GREEDY,
    MAX_DEPTH,
    SamplingSpec,
    fraction_weights,
    sample_token,
    sampling_spec,
    table,
    top_ids,
)
from tests.support.sampling_specs import random_rows, random_specs

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def on_host(logits: NDArray[np.float32], draws: list[SamplingSpec]) -> list[int]:
    return [sample_token(row, int(row.argmax()), d) for row, d in zip(logits, draws, strict=True)]


def test_weights_halve_by_the_octave() -> None:
    weights = fraction_weights()
    assert weights[0] == 1 << 30
    assert (np.diff(weights) < 0).all()
    assert weights[-1] >> (MAX_DEPTH >> 15) == 0
    assert np.abs(np.log2(weights / weights[0]) + np.arange(len(weights)) / len(weights)).max() < 1e-8


def test_a_table_holds_every_number_exactly() -> None:
    rng = np.random.default_rng(3)
    draws = random_specs(rng, 50)
    out = np.full((FIELDS, 50), np.nan)
    table(draws, out)
    for d, column in zip(draws, out.T, strict=True):
        noise, scale, top_k, top_p, max_depth = column.tolist()
        assert SamplingSpec(noise, float(np.float32(scale)), int(top_k), top_p, int(max_depth)) == d


@pytest.mark.parametrize("vocab", [1, 63, 1500])
def test_the_twin_draws_the_hosts_tokens(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    draws = random_specs(rng, 300)
    logits = random_rows(rng, 300, vocab)
    assert reference.sample_rows(torch.from_numpy(logits), draws) == on_host(logits, draws)


def test_the_kernels_draw_the_hosts_tokens() -> None:
    """Rows of greedy, plain and cut draws beside each other, over several blocks; a padding row beside them."""
    vocab = argmax_kernel.BLOCK + 777
    rng = np.random.default_rng(1)
    draws = random_specs(rng, 7)
    draws[3:5] = [sampling_spec(0.999999, 1.0, top_k=0, top_p=1.0, min_p=0.0), GREEDY]
    logits = random_rows(rng, 8, vocab)
    logits[5] = np.round(logits[5])
    held = SamplingBuffers(8, vocab, DEVICE)
    for name in ("k_depth", "p_depth", "below", "sums", "weights"):
        getattr(held, name).fill_(-77)
    held.upload(draws)
    device = torch.from_numpy(logits).to(DEVICE)
    sample_rows(device, held, Choosing.SEARCH)
    assert held.download(7).tolist() == on_host(logits[:7], draws)
    plain = [replace(d, top_k=0, top_p=1.0) for d in draws]
    held.upload(plain)
    sample_rows(device, held, Choosing.PICK)
    assert held.download(7).tolist() == on_host(logits[:7], plain)


def test_rows_that_are_not_finite_draw_nothing_and_spare_the_others() -> None:
    vocab = argmax_kernel.BLOCK + 5
    logits = random_rows(np.random.default_rng(2), 5, vocab)
    logits[0, vocab - 1] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    logits[3, :-1] = -np.inf
    draws = [sampling_spec(0.5, 1.0, top_k=40, top_p=0.9, min_p=0.0)] * 5
    held = SamplingBuffers(8, vocab, DEVICE)
    held.upload(draws)
    sample_rows(torch.from_numpy(logits).to(DEVICE), held, Choosing.of(draws))
    assert held.download(5).tolist() == [-1, -1, -1, vocab - 1, *on_host(logits[4:], draws[4:])]


def test_what_a_pass_needs_is_its_most_demanding_draw() -> None:
    plain = sampling_spec(0.5, 1.0, top_k=0, top_p=1.0, min_p=0.1)
    assert Choosing.of([None, GREEDY]) is Choosing.BEST
    assert Choosing.of([None, GREEDY, plain]) is Choosing.PICK
    assert Choosing.of([plain, replace(plain, top_k=3), None]) is Choosing.SEARCH
    assert Choosing.of([replace(GREEDY, top_k=3)]) is Choosing.BEST


def test_a_share_of_the_mass_is_of_what_top_k_kept() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    tokens = {
        sample_token(logits, 0, sampling_spec(noise, 1.0, top_k=2, top_p=0.55, min_p=0.0))
        for noise in np.arange(0, 1, 0.01)
    }
    assert tokens == {0}  # 0.4 of the 0.7 that two tokens hold


def test_tokens_as_likely_as_the_last_one_kept_are_kept() -> None:
    logits = np.array([2.0, 5.0, 2.0, 2.0, -1.0], np.float32)
    for cut in ({"top_k": 2, "top_p": 1.0}, {"top_k": 0, "top_p": 0.9}):
        tokens = {sample_token(logits, 1, sampling_spec(n, 4.0, min_p=0.0, **cut)) for n in np.arange(0, 1, 0.01)}
        assert tokens == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [1e39, 1e60, 1e308])
def test_the_hottest_draw_is_uniform(temperature: float) -> None:
    logits = np.array([-np.inf, 300.0, -300.0, 7.0, 7.0], np.float32)
    for cut in ({"top_p": 1.0, "min_p": 0.0}, {"top_p": 0.5, "min_p": 0.0}, {"top_p": 1.0, "min_p": 0.5}):
        sampled = [sample_token(logits, 1, sampling_spec(n / 8, temperature, top_k=0, **cut)) for n in range(8)]
        assert sampled == [1, 1, 2, 2, 3, 3, 4, 4]


@given(noise=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 2**32 - 1), vocab=st.integers(1, 600))
@settings(max_examples=40, deadline=None)
def test_a_draw_inverts_the_sum_of_probabilities(noise: float, seed: int, vocab: int) -> None:
    logits = random_rows(np.random.default_rng(seed), 1, vocab)[0]
    token = sample_token(logits, int(logits.argmax()), sampling_spec(noise, 0.8, top_k=0, top_p=1.0, min_p=0.0))
    weights = np.exp((logits.astype(np.float64) - logits.max()) / 0.8)
    sums = np.concatenate([[0.0], weights.cumsum()]) / weights.sum()
    assert sums[token] - 1e-4 <= noise <= sums[token + 1] + 1e-4
    assert math.isfinite(logits[token])


@given(k=st.integers(1, 700), vocab=st.integers(1, 700), levels=st.integers(1, 50), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_top_ids_is_a_stable_sort(k: int, vocab: int, levels: int, seed: int) -> None:
    logits = np.random.default_rng(seed).integers(0, levels, vocab).astype(np.float32)
    k = min(k, vocab)
    assert top_ids(logits, k).tolist() == sorted(range(vocab), key=lambda i: (-logits[i], i))[:k]
