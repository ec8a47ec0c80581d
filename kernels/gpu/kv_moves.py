"""KV rows moved: to lower places within their slot (an accepted path), or to another slot."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import require_cuda_or_interpreter


# Another number of rows, or tables elsewhere, must not compile anew beside running streams.
@triton.jit(do_not_specialize=["moves"], do_not_specialize_on_alignment=["source_ptr", "target_ptr"])
def _move_rows_kernel(from_ptr, to_ptr, source_ptr, target_ptr, moves, width, BLOCK: tl.constexpr):
    origin = tl.load(from_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    goal = tl.load(to_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    cols = tl.arange(0, BLOCK)
    live = cols < width
    for i in range(moves):
        source = tl.load(source_ptr + i).to(tl.int64) * width
        target = tl.load(target_ptr + i).to(tl.int64) * width
        tl.store(goal + target + cols, tl.load(origin + source + cols, mask=live), mask=live)


def move_rows(origin: torch.Tensor, goal: torch.Tensor, source: torch.Tensor, target: torch.Tensor, width: int) -> None:
    """Copy row source[i] of `origin` to row target[i] of `goal`, for i in order, in each of their tensors.

    origin, goal: (tensors,) int64, the address of each tensor's row 0 in one slot; the same or another. source, target:
    (moves,) int32; within one slot both ascending with target[i] <= source[i], so no row is read after it was written.
    Rows hold `width` elements of two bytes.
    """
    require_cuda_or_interpreter(origin, goal, source, target)
    if source.shape != target.shape:
        raise ValueError(f"{tuple(source.shape)} sources for {tuple(target.shape)} targets")
    if origin.shape != goal.shape:
        raise ValueError(f"{tuple(origin.shape)} tensors to copy from, {tuple(goal.shape)} to copy to")
    block = triton.next_power_of_2(width)
    grid = (origin.shape[0],)
    _move_rows_kernel[grid](origin, goal, source, target, source.shape[0], width, BLOCK=block, num_warps=4)
