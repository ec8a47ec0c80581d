"""Matrix products whose operands arrive by the tensor memory accelerator (TMA) (compute capability 9.0).

The sums are those of `linear`: one chain of matrix instructions from k = 0 upwards for each output. No thread computes
addresses, so registers and issue slots are left for the matrix instructions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.gpu.launch import INTERPRETED, LaunchMode, pdl_trigger, pdl_wait, prefetch_weights_l2
from kernels.gpu.tiles import Tile


@triton.jit(do_not_specialize=["rows"])
def _tma_kernel(
    x_desc,
    w_desc,
    w_ptr,
    out_ptr,
    rows,
    n,
    k,
    out_stride,
    EPILOGUE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SWAP: tl.constexpr,
    GROUP: tl.constexpr,
    AHEAD: tl.constexpr,
    MODE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    # 1. Which tile, in the order of `linear`.
    row_tiles = tl.cdiv(rows, BM)
    pid = tl.program_id(0)
    band = GROUP * tl.cdiv(n, BN)
    first = (pid // band) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    row0 = (first + (pid % band) % height) * BM
    column0 = (pid % band) // height * BN
    offs_m = row0 + tl.arange(0, BM)
    offs_n = column0 + tl.arange(0, BN)
    asked = tl.minimum(offs_n, n - 1)
    prefetch_weights_l2(w_ptr, asked, k, AHEAD)
    if EPILOGUE == "gated":
        prefetch_weights_l2(w_ptr, n + asked, k, AHEAD)
    pdl_wait(MODE)

    # 2. One pass along K. What lies past the last row arrives as zeros, past the last output it is not stored.
    if SWAP:
        acc = tl.zeros((BN, BM), tl.float32)
        up = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
        up = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = x_desc.load([row0, at])
        w = w_desc.load([column0, at])
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        acc = tl.dot(w, tl.trans(x), acc) if SWAP else tl.dot(x, tl.trans(w), acc)
        if EPILOGUE == "gated":
            u = w_desc.load([n + column0, at])
            if UPCAST:
                u = u.to(tl.float32)
            up = tl.dot(u, tl.trans(x), up) if SWAP else tl.dot(x, tl.trans(u), up)

    # 3. Epilogue, in float32.
    pdl_trigger(MODE)
    acc = tl.trans(acc) if SWAP else acc
    up = tl.trans(up) if SWAP else up
    if EPILOGUE == "gated":
        acc = acc / (1.0 + tl.exp(-acc)) * up
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * out_stride + offs_n[None, :]
    live = (offs_m[:, None] < rows) & (offs_n[None, :] < n)
    if EPILOGUE == "add":
        acc += tl.load(out_ptrs, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=live)


def tma_linear(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, *, epilogue: str, tile: Tile, mode: LaunchMode, ahead: int
) -> None:
    """`linear` in one segment, without alpha, by a tile of the TMA; `linear` has checked the operands.
    Rows of x and w begin at multiples of 16 bytes, else ValueError."""
    rows, k = x.shape
    if x.stride(0) * x.itemsize % 16 or x.data_ptr() % 16 or w.data_ptr() % 16:
        raise ValueError(f"a tma tile needs rows at multiples of 16 bytes; those of x are {x.stride(0)} values apart")
    n = out.shape[1]
    _tma_kernel[(triton.cdiv(rows, tile.bm) * triton.cdiv(n, tile.bn),)](
        TensorDescriptor(x, [rows, k], [x.stride(0), 1], [tile.bm, tile.bk]),
        TensorDescriptor(w, [w.shape[0], k], [k, 1], [tile.bn, tile.bk]),
        w,
        out,
        rows,
        n,
        k,
        out.stride(0),
        EPILOGUE=epilogue,
        BM=tile.bm,
        BN=tile.bn,
        BK=tile.bk,
        SWAP=tile.swap,
        GROUP=8,
        AHEAD=ahead,
        MODE=str(mode),
        UPCAST=INTERPRETED,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
        launch_pdl=mode is LaunchMode.CHAINED,
    )
