"""Keeping an accepted path: KV rows moved to lower places within their slot."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import require_cuda_or_interpreter


@triton.jit
def _move_rows_kernel(base_ptr, source_ptr, target_ptr, moves, width, BLOCK: tl.constexpr):
    base = tl.load(base_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    cols = tl.arange(0, BLOCK)
    live = cols < width
    for i in range(moves):
        source = tl.load(source_ptr + i).to(tl.int64) * width
        target = tl.load(target_ptr + i).to(tl.int64) * width
        tl.store(base + target + cols, tl.load(base + source + cols, mask=live), mask=live)


def move_rows(base: torch.Tensor, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Copy row source[i] to row target[i], for i in order, in each tensor whose row 0 lies at an address of `base`.

    base: (tensors,) int64. source, target: (moves,) int32, both ascending with target[i] <= source[i], so no row is
    read after it was written. Rows hold `width` elements of two bytes.
    """
    require_cuda_or_interpreter(base, source, target)
    if source.shape != target.shape:
        raise ValueError(f"{tuple(source.shape)} sources for {tuple(target.shape)} targets")
    block = triton.next_power_of_2(width)
    _move_rows_kernel[(base.shape[0],)](base, source, target, source.shape[0], width, BLOCK=block, num_warps=4)
