"""Logits to token: one `Sampler` a sequence, plain numpy, each row by itself.

A draw depends on its row's logits, the request's parameters, the path before it and its position, so a row sampled in a
joint round, alone, or as a node of a tree gives the same token. Order of the steps: penalties and bias on the raw
logits, temperature, top_k, top_p (over what top_k kept), min_p, then one uniform number through the inverse of the
cumulative distribution. Kept tokens are taken in a fixed order: from the most to the least likely, ties to the lowest
id; where nothing is cut, by id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams, TokenLogprob

_BLOCK = 256
_FIRST_NUCLEUS = 256
_MASK64 = (1 << 64) - 1


class NonFiniteLogits(Exception):
    """The model returned a row without a finite best logit: nothing can be drawn from it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token, and its log-probabilities where the request asked for them."""

    token: int
    logprob: TokenLogprob | None = None


def uniform(seed: int, choice: int, position: int) -> float:
    """The noise of a sampled token, in [0, 1): Philox with the key (seed, choice) at the counter `position`."""
    key = np.array([seed & _MASK64, choice & _MASK64], np.uint64)
    counter = np.array([position, 0, 0, 0], np.uint64)
    return float(np.random.Generator(np.random.Philox(counter=counter, key=key)).random())


class Sampler:
    """Draws the tokens of one choice.

    `prompt_len` separates the path's prompt from what was generated: the repetition penalty counts both, presence and
    frequency penalties count generated tokens alone. `logprobs` as in `Request.logprobs`.
    """

    def __init__(self, params: SamplingParams, *, choice: int, prompt_len: int, logprobs: int | None) -> None:
        self._params = params
        self._choice = choice
        self._logprobs = logprobs
        self._shaped = _shapes(params)
        self._history = _History(prompt_len) if _penalises(params) else None
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float32)

    @property
    def wants_best(self) -> bool:
        """Whether the largest logit alone decides: greedy, nothing penalised or biased, no log-probabilities."""
        return self._params.greedy and not self._shaped and self._logprobs is None

    def take_best(self, token: int, path: Sequence[int]) -> Sampled:
        """What `sample` draws where `wants_best`, from the id that `Runner.forward_best` gave. Raises
        NonFiniteLogits."""
        if token < 0:
            raise NonFiniteLogits(f"the model's logits at position {len(path)} are not finite")
        return Sampled(token)

    def sample(self, logits: NDArray[np.float32], path: Sequence[int]) -> Sampled:
        """Draw the token that follows `path` (prompt and generated tokens so far) from its row of logits (vocab_size).

        The draw's position is len(path). `path` only ever grows between calls. Log-probabilities are those of the
        model's own distribution, before penalties, bias, temperature and cuts. Raises NonFiniteLogits.
        """
        shaped = self._shape(logits, path) if self._shaped else logits
        best = int(shaped.argmax())
        if not math.isfinite(shaped[best]):
            raise NonFiniteLogits(f"the model's logits at position {len(path)} are not finite")
        token = best if self._params.greedy else self._draw(shaped, best, len(path))
        if self._logprobs is None:
            return Sampled(token)
        return Sampled(token, token_logprob(logits, token, self._logprobs))

    def _shape(self, logits: NDArray[np.float32], path: Sequence[int]) -> NDArray[np.float32]:
        shaped = logits.copy()
        params = self._params
        if self._history is not None:
            self._history.extend(path)
            if params.repetition_penalty != 1.0:
                seen = self._history.seen()
                values = shaped[seen]
                penalty = np.float32(params.repetition_penalty)
                shaped[seen] = np.where(values > 0, values / penalty, values * penalty)
            tokens, counts = self._history.generated()
            shaped[tokens] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts
        if len(self._bias):
            np.add.at(shaped, self._bias_ids, self._bias)
        return shaped

    def _draw(self, logits: NDArray[np.float32], best: int, position: int) -> int:
        params = self._params
        noise = uniform(params.seed, self._choice, position)
        scale = 1.0 / params.temperature
        vocab = len(logits)
        top = float(logits[best])
        cuts = params.top_k > 0 or params.top_p < 1.0
        if not cuts and params.min_p <= 0.0:
            return _draw_full(logits, top, scale, noise)
        if params.top_k > 0:
            ids = top_ids(logits, min(params.top_k, vocab))
            weights = _weights(logits[ids], top, scale)
            if params.top_p < 1.0:
                ids, weights = _nucleus(ids, weights, params.top_p * float(weights.sum()))
        elif params.top_p < 1.0:
            ids, weights = _nucleus_of_all(logits, top, scale, params.top_p)
        else:
            ids = np.flatnonzero(logits >= top + math.log(params.min_p) / scale)
            ids = ids[np.argsort(-logits[ids], kind="stable")]
            weights = _weights(logits[ids], top, scale)
        if cuts and params.min_p > 0.0:
            kept = max(1, int(np.count_nonzero(weights >= params.min_p)))
            ids, weights = ids[:kept], weights[:kept]
        cumulative = weights.cumsum()
        drawn = int(cumulative.searchsorted(noise * cumulative[-1], side="right"))
        return int(ids[min(drawn, len(ids) - 1)])


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """The log-probability of `token` and of the `top` best, from the log-softmax of a row of logits."""
    peak = float(logits.max())
    norm = peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    best = tuple((int(i), float(logits[i]) - norm) for i in top_ids(logits, min(top, len(logits)))) if top else ()
    return TokenLogprob(token, float(logits[token]) - norm, best)


def top_ids(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the `k` largest logits, largest first, ties to the lowest id.

    The k-th largest of the column maxima of any k or more columns is a lower bound of the k-th largest logit, which
    leaves few candidates to sort.
    """
    columns = len(logits) // 64
    pool = logits[: columns * 64].reshape(64, columns).max(axis=0) if k < columns else logits
    ids = np.flatnonzero(logits >= np.partition(pool, len(pool) - k)[len(pool) - k])
    return ids[np.argsort(-logits[ids], kind="stable")[:k]]


def _weights(logits: NDArray[np.float32], top: float, scale: float) -> NDArray[np.float64]:
    """Unnormalised probabilities; the most likely token has weight 1."""
    return np.exp((logits.astype(np.float64) - top) * scale)


def _nucleus(
    ids: NDArray[np.int64], weights: NDArray[np.float64], mass: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The shortest head of `ids` (most likely first) whose weights reach `mass`; at least one."""
    kept = int(weights.cumsum().searchsorted(mass, side="left")) + 1
    return ids[:kept], weights[:kept]


def _nucleus_of_all(
    logits: NDArray[np.float32], top: float, scale: float, top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The nucleus of a whole row. Tries the few most likely tokens first, since they mostly hold it."""
    mass = top_p * float(np.exp((logits - np.float32(top)) * np.float32(scale)).sum(dtype=np.float64))
    vocab = len(logits)
    k = min(_FIRST_NUCLEUS, vocab)
    while True:
        ids = top_ids(logits, k)
        weights = _weights(logits[ids], top, scale)
        if k == vocab or float(weights.sum()) >= mass:
            return _nucleus(ids, weights, mass)
        k = min(k * 8, vocab)


def _draw_full(logits: NDArray[np.float32], top: float, scale: float, noise: float) -> int:
    """Inverse of the cumulative distribution over the whole vocabulary by id, in two steps: the block, then within."""
    weights = np.exp((logits - np.float32(top)) * np.float32(scale))
    starts = np.arange(0, len(weights), _BLOCK)
    blocks = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    target = noise * blocks[-1]
    block = min(int(blocks.searchsorted(target, side="right")), len(blocks) - 1)
    before = float(blocks[block - 1]) if block else 0.0
    within = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    drawn = int(within.searchsorted(target - before, side="right"))
    if drawn == len(within):  # rounding put the target past the block's own sum: its last possible token
        drawn = int(np.flatnonzero(within < within[-1])[-1]) + 1 if within[0] < within[-1] else 0
    return block * _BLOCK + drawn


def _penalises(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _shapes(params: SamplingParams) -> bool:
    return bool(params.logit_bias) or _penalises(params)


class _History:
    """Which tokens a path holds, kept up as it grows: distinct tokens, and counts of the generated ones."""

    def __init__(self, prompt_len: int) -> None:
        self._prompt_len = prompt_len
        self._done = 0
        self._seen: dict[int, None] = {}
        self._counts: dict[int, int] = {}

    def extend(self, path: Sequence[int]) -> None:
        for i in range(self._done, len(path)):
            token = path[i]
            self._seen[token] = None
            if i >= self._prompt_len:
                self._counts[token] = self._counts.get(token, 0) + 1
        self._done = len(path)

    def seen(self) -> NDArray[np.int64]:
        return np.fromiter(self._seen, np.int64, len(self._seen))

    def generated(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        n = len(self._counts)
        return np.fromiter(self._counts, np.int64, n), np.fromiter(self._counts.values(), np.float32, n)
