"""The rule by which a token is drawn from a row of logits: the same integers on every device, so the same token.

A token's depth is how far its logit lies below the row's largest, in steps of 2**-15 octaves of probability at the
request's temperature: `int((largest - logit) * scale)`, where the difference and the product are single float32
operations that every device rounds alike. Its weight is 2**(30 - depth / 2**15), cut to an integer. Sums of integers
have no order, so blocks of a device and numpy on a host agree to the last bit.

A cut is a depth that kept tokens do not exceed: `top_k` takes that of the k-th most likely token, `top_p` then that at
which the weights (of what top_k kept) reach the share, `min_p` is a depth by itself. Tokens as likely as the last one
kept are kept too. Of what is kept, by id, the first token at which the sum of weights exceeds noise * total is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS = 15
MAX_DEPTH = (31 << FRACTION_BITS) - 1
"""Depth of every token whose weight would be less than half a unit: its weight is zero."""
_STEPS = 1 << FRACTION_BITS
_TOP_WEIGHT = 1 << 30
_BLOCK = 256
_FIRST_NUCLEUS = 256
_LEAST_SCALE = 1e-30
"""At which all finite logits of a model have one depth. Less, and float32 overflows where depths become logits again,
or holds the scale as the zero of a greedy spec."""

FIELDS = 5
"""Numbers of a spec in `table`: noise, scale, top_k, top_p, max_depth."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one token is drawn. `scale` is depths a nat as float32 holds it, 0 where the largest logit is taken; `noise`
    lies in [0, 1). `top_k` 0, `top_p` 1 and `max_depth` MAX_DEPTH cut nothing."""

    noise: float = 0.0
    scale: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_depth: int = MAX_DEPTH

    @property
    def greedy(self) -> bool:
        return self.scale == 0.0

    @property
    def searches(self) -> bool:
        """Whether the depth of a cut depends on the row."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0)


GREEDY = SamplingSpec()


def sampling_spec(noise: float, temperature: float, *, top_k: int, top_p: float, min_p: float) -> SamplingSpec:
    """The spec of a request's parameters; `top_k` 0, `top_p` 1 and `min_p` 0 keep everything."""
    scale = float(np.float32(max(_STEPS / math.log(2.0) / temperature, _LEAST_SCALE)))
    depth = MAX_DEPTH if min_p <= 0.0 else min(MAX_DEPTH, int(-math.log2(min_p) * _STEPS))
    return SamplingSpec(noise, scale, top_k, top_p, depth)


def table(specs: Sequence[SamplingSpec], out: NDArray[np.float64]) -> None:
    """Write specs into the columns of `out`, (FIELDS, rows): every number is one that float64 holds exactly."""
    for i, d in enumerate(specs):
        out[:, i] = (d.noise, d.scale, d.top_k, d.top_p, d.max_depth)


def fraction_weights() -> NDArray[np.int32]:
    """The weights of the depths 0 to 2**15 - 1; an octave further down they are half, rounded down."""
    weights: NDArray[np.int32] = np.rint(_TOP_WEIGHT * np.exp2(-np.arange(_STEPS) / _STEPS)).astype(np.int32)
    return weights


_FRACTIONS = fraction_weights()


def sample_token(logits: NDArray[np.float32], best: int, spec: SamplingSpec) -> int:
    """The token drawn from a row of logits (vocabulary) whose largest, which is finite, is at `best`."""
    if spec.greedy:
        return best
    top = logits[best]
    limit = MAX_DEPTH - 1  # deeper ones weigh nothing
    if spec.top_k:
        last = top_ids(logits, min(spec.top_k, len(logits)))[-1:]
        limit = min(limit, int(_depths(logits[last], top, spec.scale)[0]))
    if spec.top_p < 1.0:
        _, depths = _within(logits, top, spec.scale, limit)
        limit = min(limit, _nucleus_depth(depths, spec.top_p))
    limit = min(limit, spec.max_depth)
    if limit == MAX_DEPTH - 1:
        return _pick(_weights(_depths(logits, top, spec.scale)), spec.noise)
    ids, depths = _within(logits, top, spec.scale, limit)
    return int(ids[_pick(_weights(depths), spec.noise)])


def top_ids(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the `k` largest logits, largest first, ties to the lowest id.

    The k-th largest of the column maxima of any k or more columns is a lower bound of the k-th largest logit, which
    leaves few candidates to sort.
    """
    columns = len(logits) // 64
    pool = logits[: columns * 64].reshape(64, columns).max(axis=0) if k < columns else logits
    ids = np.flatnonzero(logits >= np.partition(pool, len(pool) - k)[len(pool) - k])
    return ids[np.argsort(-logits[ids], kind="stable")[:k]]


def _depths(logits: NDArray[np.float32], top: np.float32, scale: float) -> NDArray[np.int32]:
    with np.errstate(over="ignore"):
        below = (top - logits) * np.float32(scale)
    np.minimum(below, np.float32(MAX_DEPTH), out=below)
    depths: NDArray[np.int32] = below.astype(np.int32)
    return depths


def _within(
    logits: NDArray[np.float32], top: np.float32, scale: float, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The ids, ascending, of the tokens down to the depth `limit`, and their depths."""
    # A bound that rounding cannot put above any of them leaves few to look at.
    bound = float(top) - (limit + 1) / scale * (1 + 1e-6)
    ids = np.flatnonzero(logits >= np.nextafter(np.float32(bound), np.float32(-np.inf)))
    depths = _depths(logits[ids], top, scale)
    kept = depths <= limit
    return ids[kept], depths[kept]


def _weights(depths: NDArray[np.int32]) -> NDArray[np.int32]:
    weights: NDArray[np.int32] = _FRACTIONS.take(depths & (_STEPS - 1))
    weights >>= depths >> FRACTION_BITS
    return weights


def _nucleus_depth(depths: NDArray[np.int32], share: float) -> int:
    """The depth at which the weights, from the most likely on, reach the share of them all. Tries the few most likely
    first, since they mostly hold it."""
    need = share * float(_weights(depths).sum(dtype=np.int64))
    k = min(_FIRST_NUCLEUS, len(depths))
    while True:
        nearest = np.sort(np.partition(depths, k - 1)[:k])
        sums = _weights(nearest).cumsum(dtype=np.int64).astype(np.float64)
        at = int(sums.searchsorted(need))
        if at < k or k == len(depths):
            return int(nearest[min(at, k - 1)])
        k = min(k * 8, len(depths))


def _pick(weights: NDArray[np.int32], noise: float) -> int:
    """The first index at which the sum of `weights` exceeds noise * total, in two steps: the block, then within."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.int64).cumsum()
    total = int(blocks[-1])
    target = min(int(noise * float(total)), total - 1)
    block = int(blocks.searchsorted(target, side="right"))
    before = int(blocks[block - 1]) if block else 0
    within = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.int64)
    return block * _BLOCK + int(within.searchsorted(target - before, side="right"))
