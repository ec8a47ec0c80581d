"""Random rows of logits and random draws from them, for the rule of drawing on any device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.gpu.sampling import Choosing
from kernels.sampling import GREEDY, SamplingSpec, sampling_spec


def random_draw(rng: np.random.Generator, kind: Choosing) -> SamplingSpec:
    """A draw that takes no more than `kind`, at any temperature."""
    if kind is Choosing.BEST:
        return GREEDY
    searches = kind is Choosing.SEARCH
    return sampling_spec(
        float(rng.random()),
        float(rng.choice([0.05, 0.3, 0.7, 1.0, 1.7, 20.0])),
        top_k=int(rng.choice([0, 2, 7, 40, 200_000])) if searches else 0,
        top_p=float(rng.choice([1.0, 1.0, 0.0, 0.3, 0.9, 0.999])) if searches else 1.0,
        min_p=float(rng.choice([0.0, 0.0, 0.01, 0.5, 1.0])),
    )


def random_specs(rng: np.random.Generator, count: int, most: Choosing = Choosing.SEARCH) -> list[SamplingSpec]:
    """Draws of every kind up to `most`, greedy ones too."""
    kinds = list(Choosing)[: list(Choosing).index(most) + 1]
    return [random_draw(rng, kinds[int(i)]) for i in rng.integers(0, len(kinds), count)]


def random_rows(rng: np.random.Generator, rows: int, vocab: int) -> NDArray[np.float32]:
    """Rows of several spreads, some with many equal logits and some with impossible tokens."""
    logits = rng.standard_normal((rows, vocab), np.float32) * rng.choice(np.float32([0.1, 1, 3, 9]), (rows, 1))
    coarse = rng.random(rows) < 0.3
    logits[coarse] = np.round(logits[coarse])
    logits[rng.random((rows, vocab), np.float32) < rng.choice([0.0, 0.2], (rows, 1))] = -np.inf
    logits[:, rng.integers(vocab)] = rng.standard_normal(rows, np.float32)  # one that is possible
    return logits
