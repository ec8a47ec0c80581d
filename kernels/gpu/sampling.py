"""Drawing on the device by the rule of `kernels.sampling`: integers alone, so the tokens are the host's.

The depth of a cut is found five bits at a time: one launch sums the tokens, or their weights, of each value of the next
five bits in blocks of a row, one takes the value at which the sum is reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.gpu.argmax import BLOCK, ArgmaxScratch, argmax
from kernels.gpu.launch import INTERPRETED, LaunchMode, default_mode, pdl_join, require_cuda_or_interpreter
from kernels.sampling import FIELDS, FRACTION_BITS, GREEDY, MAX_DEPTH, SamplingSpec, fraction_weights, table

_MAX_DEPTH = tl.constexpr(MAX_DEPTH)
_FRACTION_BITS = tl.constexpr(FRACTION_BITS)
_FRACTION = tl.constexpr((1 << FRACTION_BITS) - 1)
_DIGIT_BITS = 5
_DIGITS = tl.constexpr(1 << _DIGIT_BITS)
_CHUNK = BLOCK if INTERPRETED else 128
_FIRST_SHIFT = tl.constexpr(15)
_SHIFTS = (15, 10, 5, 0)
"""The digits of a depth, from the highest."""


class Choosing(StrEnum):
    """What a batch's specs need: the largest logit alone, a draw whose cuts are depths, or a search for the depths."""

    BEST = "best"
    PICK = "pick"
    SEARCH = "search"

    @classmethod
    def of(cls, specs: Sequence[SamplingSpec | None]) -> Choosing:
        if any(d is not None and d.searches for d in specs):
            return cls.SEARCH
        return cls.PICK if any(d is not None and not d.greedy for d in specs) else cls.BEST


@triton.jit
def _row_top(best_ptr, row, blocks, BLOCKS: tl.constexpr):
    block = tl.arange(0, BLOCKS)
    return tl.max(tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf")), axis=0)


@triton.jit
def _depths(logit_ptr, row, cols, vocab, top, scale):
    logits = tl.load(logit_ptr + row.to(tl.int64) * vocab + cols, mask=cols < vocab, other=float("-inf"))
    return tl.minimum((top - logits) * scale, _MAX_DEPTH * 1.0).to(tl.int32)


@triton.jit
def _weights(depth, fraction_ptr):
    first = tl.load(fraction_ptr + (depth & _FRACTION), mask=depth < _MAX_DEPTH, other=0)
    return (first >> (depth >> _FRACTION_BITS)).to(tl.int64)


@triton.jit
def _samples(field_ptr, id_ptr, row, rows):
    """Whether there is a choice: not where the largest is taken, or not finite."""
    return (tl.load(field_ptr + rows + row) > 0.0) & (tl.load(id_ptr + row) >= 0)


@triton.jit
def _asked(field_ptr, id_ptr, row, rows, BY_WEIGHT: tl.constexpr):
    """Whether the row's spec has the cut: its share of weights, or its number of tokens."""
    chosen = _samples(field_ptr, id_ptr, row, rows)
    if BY_WEIGHT:
        chosen = chosen & (tl.load(field_ptr + 3 * rows + row) < 1.0)
    else:
        chosen = chosen & (tl.load(field_ptr + 2 * rows + row) > 0.0)
    return chosen


@triton.jit
def _k_depth(field_ptr, k_depth_ptr, row, rows):
    return tl.load(k_depth_ptr + row, mask=tl.load(field_ptr + 2 * rows + row) > 0.0, other=_MAX_DEPTH)


@triton.jit
def _limit(field_ptr, k_depth_ptr, p_depth_ptr, row, rows):
    """The depth that kept tokens do not exceed."""
    p_depth = tl.load(p_depth_ptr + row, mask=tl.load(field_ptr + 3 * rows + row) < 1.0, other=_MAX_DEPTH)
    fixed = tl.load(field_ptr + 4 * rows + row).to(tl.int32)
    return tl.minimum(tl.minimum(fixed, p_depth), _k_depth(field_ptr, k_depth_ptr, row, rows))


@triton.jit
def _kept_weights(
    logit_ptr, best_ptr, field_ptr, fraction_ptr, k_depth_ptr, p_depth_ptr, row, block, rows, vocab, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The weights (BLOCK) of a block's tokens, zero where a cut leaves one out."""
    scale = tl.load(field_ptr + rows + row).to(tl.float32)
    top = _row_top(best_ptr, row, blocks, BLOCKS)
    depth = _depths(logit_ptr, row, block * BLOCK + tl.arange(0, BLOCK), vocab, top, scale)
    kept = depth <= _limit(field_ptr, k_depth_ptr, p_depth_ptr, row, rows)
    return tl.where(kept, _weights(depth, fraction_ptr), 0)


@triton.jit(do_not_specialize=["rows", "shift"])
def _digit_sums_kernel(
    logit_ptr,
    best_ptr,
    field_ptr,
    id_ptr,
    fraction_ptr,
    depth_ptr,
    k_depth_ptr,
    sum_ptr,
    rows,
    vocab,
    blocks,
    shift,
    BY_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MODE: tl.constexpr,
):
    pdl_join(MODE)
    row = tl.program_id(0)
    block = tl.program_id(1)
    if _asked(field_ptr, id_ptr, row, rows, BY_WEIGHT):
        top = _row_top(best_ptr, row, blocks, BLOCKS)
        scale = tl.load(field_ptr + rows + row).to(tl.float32)
        low = tl.load(depth_ptr + row, mask=shift != _FIRST_SHIFT, other=0)
        digits = tl.arange(0, _DIGITS)
        sums = tl.zeros((_DIGITS, CHUNK), tl.int64)
        for at in range(0, BLOCK, CHUNK):
            depth = _depths(logit_ptr, row, block * BLOCK + at + tl.arange(0, CHUNK), vocab, top, scale)
            amount = tl.full((CHUNK,), 1, tl.int64)
            if BY_WEIGHT:
                kept = depth <= _k_depth(field_ptr, k_depth_ptr, row, rows)
                amount = tl.where(kept, _weights(depth, fraction_ptr), 0)
            digit = (depth - low) >> shift
            sums += tl.where(digit[None, :] == digits[:, None], amount[None, :], 0)
        tl.store(sum_ptr + (row * blocks + block) * _DIGITS + digits, tl.sum(sums, axis=1))


@triton.jit(do_not_specialize=["rows", "shift"])
def _take_digit_kernel(
    field_ptr,
    id_ptr,
    sum_ptr,
    depth_ptr,
    below_ptr,
    need_ptr,
    rows,
    blocks,
    shift,
    BY_WEIGHT: tl.constexpr,
    BLOCKS: tl.constexpr,
    MODE: tl.constexpr,
):
    pdl_join(MODE)
    row = tl.program_id(0)
    if _asked(field_ptr, id_ptr, row, rows, BY_WEIGHT):
        digits = tl.arange(0, _DIGITS)
        block = tl.arange(0, BLOCKS)
        at = (row * blocks + block[:, None]) * _DIGITS + digits[None, :]
        sums = tl.sum(tl.load(sum_ptr + at, mask=block[:, None] < blocks, other=0), axis=0)
        later = shift != _FIRST_SHIFT
        depth = tl.load(depth_ptr + row, mask=later, other=0)
        below = tl.load(below_ptr + row, mask=later, other=0)
        if BY_WEIGHT:
            # The first digits' sums are all there is.
            share = tl.load(field_ptr + 3 * rows + row) * tl.sum(sums, axis=0).to(tl.float64)
            need = tl.where(later, tl.load(need_ptr + row), share)
            tl.store(need_ptr + row, need)
        else:
            need = tl.load(field_ptr + 2 * rows + row)
        reached = (below + tl.cumsum(sums, axis=0)).to(tl.float64) >= need
        digit = tl.min(tl.where(reached, digits, _DIGITS - 1), axis=0)
        tl.store(below_ptr + row, below + tl.sum(tl.where(digits < digit, sums, 0), axis=0))
        tl.store(depth_ptr + row, depth + (digit << shift))


@triton.jit(do_not_specialize=["rows"])
def _block_weights_kernel(
    logit_ptr,
    best_ptr,
    field_ptr,
    id_ptr,
    fraction_ptr,
    k_depth_ptr,
    p_depth_ptr,
    weight_ptr,
    rows,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MODE: tl.constexpr,
):
    pdl_join(MODE)
    row = tl.program_id(0)
    block = tl.program_id(1)
    if _samples(field_ptr, id_ptr, row, rows):
        weights = _kept_weights(
            logit_ptr, best_ptr, field_ptr, fraction_ptr, k_depth_ptr, p_depth_ptr, row, block, rows, vocab, blocks,
            BLOCK, BLOCKS,
        )  # fmt: skip
        tl.store(weight_ptr + row * blocks + block, tl.sum(weights, axis=0))


@triton.jit(do_not_specialize=["rows"])
def _pick_kernel(
    logit_ptr,
    best_ptr,
    field_ptr,
    id_ptr,
    fraction_ptr,
    k_depth_ptr,
    p_depth_ptr,
    weight_ptr,
    rows,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MODE: tl.constexpr,
):
    pdl_join(MODE)
    row = tl.program_id(0)
    if _samples(field_ptr, id_ptr, row, rows):
        # 1. The block in which the sum of weights passes the target.
        every = tl.arange(0, BLOCKS)
        sums = tl.load(weight_ptr + row * blocks + every, mask=every < blocks, other=0)
        total = tl.sum(sums, axis=0)
        target = tl.minimum((tl.load(field_ptr + row) * total.to(tl.float64)).to(tl.int64), total - 1)
        block = tl.sum((tl.cumsum(sums, axis=0) <= target).to(tl.int32), axis=0)
        before = tl.sum(tl.where(every < block, sums, 0), axis=0)
        # 2. The token within it.
        weights = _kept_weights(
            logit_ptr, best_ptr, field_ptr, fraction_ptr, k_depth_ptr, p_depth_ptr, row, block, rows, vocab, blocks,
            BLOCK, BLOCKS,
        )  # fmt: skip
        within = tl.cumsum(weights, axis=0)
        index = tl.sum((within <= target - before).to(tl.int32), axis=0)
        tl.store(id_ptr + row, block * BLOCK + index)


class SamplingBuffers:
    """What sampling up to `rows` rows needs on the device: their specs, scratch, and ids with a host copy."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        pinned = device.type == "cuda"

        def held(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.rows = rows
        self.best = ArgmaxScratch(rows, vocab, device)
        self.fields = held(FIELDS, rows, dtype=torch.float64)
        self.fractions = torch.from_numpy(fraction_weights()).to(device)
        self.k_depth = held(rows, dtype=torch.int32)
        self.p_depth = held(rows, dtype=torch.int32)
        self.below = held(rows, dtype=torch.int64)
        self.need = held(rows, dtype=torch.float64)
        self.sums = held(rows * self.best.blocks * (1 << _DIGIT_BITS), dtype=torch.int64)
        self.weights = held(rows * self.best.blocks, dtype=torch.int64)
        self.ids = held(rows, dtype=torch.int32)
        self._host_fields = torch.zeros((FIELDS, rows), dtype=torch.float64, pin_memory=pinned)
        self._host_ids = torch.zeros(rows, dtype=torch.int32, pin_memory=pinned)

    @property
    def nbytes(self) -> int:
        held = (self.fields, self.fractions, self.k_depth, self.p_depth, self.below, self.need, self.sums, self.weights)
        return sum(t.nbytes for t in (*held, self.ids, self.best.best, self.best.index))

    def upload(self, specs: Sequence[SamplingSpec | None]) -> None:
        """Start the copy of the specs; rows without one, and padding, take the largest. The caller has synchronised
        since the last upload."""
        host = self._host_fields.numpy()
        host[:] = np.array([[0.0], [0.0], [0.0], [1.0], [0.0]])
        table([d or GREEDY for d in specs], host)
        self.fields.copy_(self._host_fields, non_blocking=True)

    def download(self, count: int) -> torch.Tensor:
        """Start the copy of the first `count` ids; the tensor is on the host, complete once the caller has
        synchronised."""
        self._host_ids[:count].copy_(self.ids[:count], non_blocking=True)
        return self._host_ids[:count]


def sample_rows(
    logits: torch.Tensor, held: SamplingBuffers, choosing: Choosing, mode: LaunchMode | None = None
) -> None:
    """held.ids[i] = the token that the i-th spec in `held.fields` takes from logits[i], -1 where a logit is no number
    or the largest is not finite. logits: (rows, vocab) float32, of at most `held.rows` rows."""
    require_cuda_or_interpreter(logits, held.ids)
    rows, vocab = logits.shape
    if rows > held.rows:
        raise ValueError(f"{rows} rows of logits; buffers for {held.rows}")
    mode = mode if mode is not None else default_mode(logits.device)
    argmax(logits, held.ids[:rows], held.best, mode)
    if choosing is Choosing.BEST:
        return
    blocks = held.best.blocks
    width = triton.next_power_of_2(blocks)
    chained = mode is LaunchMode.CHAINED
    top = held.best.best
    if choosing is Choosing.SEARCH:
        for by_weight, depth in ((False, held.k_depth), (True, held.p_depth)):
            for shift in _SHIFTS:
                _digit_sums_kernel[(rows, blocks)](
                    logits,
                    top,
                    held.fields,
                    held.ids,
                    held.fractions,
                    depth,
                    held.k_depth,
                    held.sums,
                    held.rows,
                    vocab,
                    blocks,
                    shift,
                    BY_WEIGHT=by_weight,
                    BLOCK=BLOCK,
                    CHUNK=_CHUNK,
                    BLOCKS=width,
                    MODE=str(mode),
                    num_warps=4,
                    enable_fp_fusion=False,
                    launch_pdl=chained,
                )
                _take_digit_kernel[(rows,)](
                    held.fields,
                    held.ids,
                    held.sums,
                    depth,
                    held.below,
                    held.need,
                    held.rows,
                    blocks,
                    shift,
                    BY_WEIGHT=by_weight,
                    BLOCKS=width,
                    MODE=str(mode),
                    num_warps=4,
                    enable_fp_fusion=False,
                    launch_pdl=chained,
                )
    _block_weights_kernel[(rows, blocks)](
        logits,
        top,
        held.fields,
        held.ids,
        held.fractions,
        held.k_depth,
        held.p_depth,
        held.weights,
        held.rows,
        vocab,
        blocks,
        BLOCK=BLOCK,
        BLOCKS=width,
        MODE=str(mode),
        num_warps=4,
        enable_fp_fusion=False,
        launch_pdl=chained,
    )
    _pick_kernel[(rows,)](
        logits,
        top,
        held.fields,
        held.ids,
        held.fractions,
        held.k_depth,
        held.p_depth,
        held.weights,
        held.rows,
        vocab,
        blocks,
        BLOCK=BLOCK,
        BLOCKS=width,
        MODE=str(mode),
        num_warps=8,
        enable_fp_fusion=False,
        launch_pdl=chained,
    )
