"""Greedy choice: the largest logit of a row, the lowest id among equals."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import LaunchMode, default_mode, pdl_join, require_cuda_or_interpreter

BLOCK = 4096


@triton.jit
def _block_argmax_kernel(logit_ptr, best_ptr, index_ptr, vocab, blocks, BLOCK: tl.constexpr, MODE: tl.constexpr):
    pdl_join(MODE)
    row = tl.program_id(0)
    block = tl.program_id(1)
    cols = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logit_ptr + row.to(tl.int64) * vocab + cols, mask=cols < vocab, other=float("-inf"))
    broken = (logits != logits) | (logits == float("inf"))
    any_broken = tl.max(broken.to(tl.int32), axis=0) > 0
    whole = tl.where(broken, float("-inf"), logits)
    best, index = tl.max(whole, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * blocks + block, tl.where(any_broken, float("inf"), best))
    tl.store(index_ptr + row * blocks + block, tl.where(any_broken, -1, index + block * BLOCK))


@triton.jit
def _merge_argmax_kernel(best_ptr, index_ptr, out_ptr, blocks, BLOCKS: tl.constexpr, MODE: tl.constexpr):
    pdl_join(MODE)
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    top, winner = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    chosen = tl.load(index_ptr + row * blocks + winner)
    tl.store(out_ptr + row, tl.where(top == float("-inf"), -1, chosen))


class ArgmaxScratch:
    """The best of each block of BLOCK logits, for up to `rows` rows."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.blocks = -(-vocab // BLOCK)
        self.best = torch.empty(rows * self.blocks, dtype=torch.float32, device=device)
        self.index = torch.empty(rows * self.blocks, dtype=torch.int32, device=device)


def argmax(logits: torch.Tensor, out: torch.Tensor, scratch: ArgmaxScratch, mode: LaunchMode | None = None) -> None:
    """out[i] = the lowest j with logits[i, j] the row's maximum, or -1 where a logit is no number or the maximum is not
    finite. logits: (rows, vocab) float32; out: (rows,) int32."""
    require_cuda_or_interpreter(logits, out)
    rows, vocab = logits.shape
    if not logits.is_contiguous() or out.shape != (rows,):
        raise ValueError(f"logits {tuple(logits.shape)} must be contiguous, out {tuple(out.shape)} of {rows} rows")
    mode = mode if mode is not None else default_mode(logits.device)
    _block_argmax_kernel[(rows, scratch.blocks)](
        logits,
        scratch.best,
        scratch.index,
        vocab,
        scratch.blocks,
        BLOCK=BLOCK,
        MODE=str(mode),
        num_warps=4,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
    _merge_argmax_kernel[(rows,)](
        scratch.best,
        scratch.index,
        out,
        scratch.blocks,
        BLOCKS=triton.next_power_of_2(scratch.blocks),
        MODE=str(mode),
        num_warps=1,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
