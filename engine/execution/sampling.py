"""Logits to token: one `Sampler` a sequence, each row by itself.

A draw depends on its row's logits, the request's parameters, the path before it and its position, so a row sampled in a
decode round, alone, or as a node of a tree gives the same token, on a host or on a device. Order of the steps:
penalties and bias on the raw logits, then the rule of `kernels.sampling`: temperature, top_k, top_p (over what top_k
kept), min_p, and one uniform number through the inverse of the cumulative distribution by id."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams, TokenLogprob
from kernels.sampling import GREEDY, SamplingSpec, sample_token, sampling_spec, top_ids

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
        self._rule = (
            GREEDY
            if params.greedy
            else sampling_spec(0.0, params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
        )
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float32)

    def draw(self, position: int) -> SamplingSpec | None:
        """How the token at `position` is drawn from its row's logits alone; None where that takes more: penalties, a
        bias, or log-probabilities, for which `sample` needs the row."""
        return None if self._shaped or self._logprobs is not None else self._draw(position)

    def take(self, token: int, path: Sequence[int]) -> Sampled:
        """What `sample` draws, from the id that the runner drew by `draw`. Raises NonFiniteLogits."""
        if token < 0:
            raise NonFiniteLogits(f"the model's logits at position {len(path)} are not finite")
        return Sampled(token)

    def sample(self, logits: NDArray[np.float32], path: Sequence[int]) -> Sampled:
        """Sample the token that follows `path` (prompt and generated tokens) from its row of logits (vocab_size).

        The draw's position is len(path). `path` only ever grows between calls. Log-probabilities are those of the
        model's own distribution, before penalties, bias, temperature and cuts. Raises NonFiniteLogits.
        """
        shaped = self._shape(logits, path) if self._shaped else logits
        best = int(shaped.argmax())
        if not math.isfinite(shaped[best]):
            raise NonFiniteLogits(f"the model's logits at position {len(path)} are not finite")
        token = sample_token(shaped, best, self._draw(len(path)))
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

    def _draw(self, position: int) -> SamplingSpec:
        if self._rule.greedy:
            return self._rule
        return replace(self._rule, noise=uniform(self._params.seed, self._choice, position))


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """The log-probability of `token` and of the `top` best, from the log-softmax of a row of logits."""
    peak = float(logits.max())
    norm = peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    best = tuple((int(i), float(logits[i]) - norm) for i in top_ids(logits, min(top, len(logits)))) if top else ()
    return TokenLogprob(token, float(logits[token]) - norm, best)


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
