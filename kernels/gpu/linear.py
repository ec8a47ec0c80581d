"""Matrix products with 16-bit weights: one order of additions along K, for one row or a prompt chunk.

out = epilogue(x @ w.T). Each output is one chain of matrix instructions from k = 0 upwards into one float32
accumulator (or, in segments, a chain for each, added in order), so neither the tile nor the number of rows decides
its bits.
"""

from __future__ import annotations

from enum import StrEnum

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import (
    INTERPRETED,
    LaunchMode,
    default_mode,
    has_tma,
    pdl_trigger,
    pdl_wait,
    prefetch_weights_l2,
    require_cuda_or_interpreter,
)
from kernels.gpu.tile_cache import tile_for
from kernels.gpu.tiles import Tile, segmented_tile
from kernels.gpu.tma import tma_linear


class Epilogue(StrEnum):
    """What becomes of the float32 sums. STORE: cast to the output's dtype. ADD: add to the output in place (the
    residual stream). GATED: the weights hold gate rows, then as many up rows; store silu(gate) * up."""

    STORE = "store"
    ADD = "add"
    GATED = "gated"


AHEAD = 128
"""Weights of each row that a CHAINED product asks of L2 while it waits for its input: memory is idle then."""


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    alpha_ptr,
    rows,
    n,
    k,
    x_stride,
    out_stride,
    HAS_ALPHA: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SHARE: tl.constexpr,
    BK: tl.constexpr,
    SWAP: tl.constexpr,
    SEGMENTS: tl.constexpr,
    GROUP: tl.constexpr,
    AHEAD: tl.constexpr,
    MODE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    # 1. Which tile. Programs that share a band of rows stay together, so that L2 serves the weights to all of them.
    row_tiles = tl.cdiv(rows, BM)
    out_tiles = tl.cdiv(n, SHARE)
    pid = tl.program_id(0)
    band = GROUP * out_tiles
    first = (pid // band) * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    pid_m = first + (pid % band) % height
    pid_n = (pid % band) // height
    offs_m = pid_m * BM + tl.arange(0, BM)
    offs_n = pid_n * SHARE + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    mine = offs_n < n
    if SHARE < BN:
        mine = mine & (tl.arange(0, BN) < SHARE)
    m_live = offs_m[:, None] < rows
    n_live = mine[:, None]
    up_offset = n.to(tl.int64) * k
    asked = tl.where(mine, offs_n, pid_n * SHARE)
    prefetch_weights_l2(w_ptr, asked, k, AHEAD)
    if EPILOGUE == "gated":
        prefetch_weights_l2(w_ptr + up_offset, asked, k, AHEAD)
    pdl_wait(MODE)

    # 2. One pass along K, or one a segment.
    x_ptrs = x_ptr + offs_m[:, None].to(tl.int64) * x_stride + offs_k[None, :]
    w_ptrs = w_ptr + offs_n[:, None].to(tl.int64) * k + offs_k[None, :]
    steps = k // 64
    if SWAP:
        total = tl.zeros((BN, BM), tl.float32)
        total_up = tl.zeros((BN, BM), tl.float32)
    else:
        total = tl.zeros((BM, BN), tl.float32)
        total_up = tl.zeros((BM, BN), tl.float32)
    for segment in tl.static_range(SEGMENTS):
        if SWAP:
            acc = tl.zeros((BN, BM), tl.float32)
            up = tl.zeros((BN, BM), tl.float32)
        else:
            acc = tl.zeros((BM, BN), tl.float32)
            up = tl.zeros((BM, BN), tl.float32)
        begin = steps * segment // SEGMENTS * 64
        end = steps * (segment + 1) // SEGMENTS * 64
        for _ in range(begin, end, BK):
            x = tl.load(x_ptrs, mask=m_live, other=0.0)
            w = tl.load(w_ptrs, mask=n_live, other=0.0)
            if UPCAST:
                x = x.to(tl.float32)
                w = w.to(tl.float32)
            acc = tl.dot(w, tl.trans(x), acc) if SWAP else tl.dot(x, tl.trans(w), acc)
            if EPILOGUE == "gated":
                u = tl.load(w_ptrs + up_offset, mask=n_live, other=0.0)
                if UPCAST:
                    u = u.to(tl.float32)
                up = tl.dot(u, tl.trans(x), up) if SWAP else tl.dot(x, tl.trans(u), up)
            x_ptrs += BK
            w_ptrs += BK
        total = acc if segment == 0 else total + acc
        total_up = up if segment == 0 else total_up + up

    # 3. Epilogue, in float32.
    pdl_trigger(MODE)
    acc = tl.trans(total) if SWAP else total
    up = tl.trans(total_up) if SWAP else total_up
    if HAS_ALPHA:
        acc *= tl.load(alpha_ptr + offs_n, mask=mine, other=0.0)[None, :]
    if HAS_ALPHA and EPILOGUE == "gated":
        up *= tl.load(alpha_ptr + n + offs_n, mask=mine, other=0.0)[None, :]
    if EPILOGUE == "gated":
        acc = acc / (1.0 + tl.exp(-acc)) * up
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * out_stride + offs_n[None, :]
    live = m_live & mine[None, :]
    if EPILOGUE == "add":
        acc += tl.load(out_ptrs, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=live)


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    epilogue: Epilogue = Epilogue.STORE,
    *,
    tile: Tile | None = None,
    segments: int = 1,
    mode: LaunchMode | None = None,
    alpha: torch.Tensor | None = None,
) -> None:
    """out[i, j] = epilogue(alpha[j] * sum over k of x[i, k] * w[j, k]).

    x: (rows, k) bf16 or float16, contiguous along k. w: (n, k) of the same type, contiguous, (2n, k) for GATED. out:
    (rows, n), that type or float32; read too for ADD. alpha: float32, one a row of w, or None for ones. k is a multiple
    of 64; `segments` cut it at multiples of 64 that the tile's depth divides.
    """
    require_cuda_or_interpreter(x, w, out)
    rows, k = x.shape
    n = out.shape[1]
    weight_rows = 2 * n if epilogue is Epilogue.GATED else n
    if w.shape != (weight_rows, k) or not w.is_contiguous():
        raise ValueError(f"w is {tuple(w.shape)}, contiguous {w.is_contiguous()}; needs ({weight_rows}, {k})")
    if x.stride(1) != 1 or out.stride(1) != 1 or out.shape[0] != rows:
        raise ValueError(f"x {tuple(x.shape)} and out {tuple(out.shape)} need the same rows, contiguous in them")
    if x.dtype not in (torch.bfloat16, torch.float16) or w.dtype is not x.dtype:
        raise ValueError(f"x is {x.dtype}, w is {w.dtype}; both must be bfloat16, or both float16")
    if alpha is not None and (alpha.shape != (weight_rows,) or alpha.dtype is not torch.float32):
        raise ValueError(f"alpha is {tuple(alpha.shape)} {alpha.dtype}; needs ({weight_rows},) float32")
    if tile is not None:
        t = tile
    elif segments > 1:
        t = segmented_tile(rows, gated=epilogue is Epilogue.GATED)
    else:
        tma = has_tma(x.device) and alpha is None
        t = tile_for(_device_name(x.device), rows, n, k, epilogue, tma=tma)
    if any(k // 64 * s // segments * 64 % t.bk for s in range(1, segments + 1)):
        raise ValueError(f"k = {k} in {segments} segments is not a multiple of the tile's depth {t.bk}")
    mode = mode if mode is not None else default_mode(x.device)
    ahead = AHEAD if mode is LaunchMode.CHAINED else 0
    if t.tma:
        if segments != 1 or alpha is not None:
            raise ValueError(f"a tma tile computes one segment without alpha, not {segments}")
        tma_linear(x, w, out, epilogue=str(epilogue), tile=t, mode=mode, ahead=ahead)
        return
    grid = (triton.cdiv(rows, t.bm) * triton.cdiv(n, t.outputs),)
    _linear_kernel[grid](
        x,
        w,
        out,
        alpha if alpha is not None else w,
        rows,
        n,
        k,
        x.stride(0),
        out.stride(0),
        HAS_ALPHA=alpha is not None,
        EPILOGUE=str(epilogue),
        BM=t.bm,
        BN=t.bn,
        SHARE=t.outputs,
        BK=t.bk,
        SWAP=t.swap,
        SEGMENTS=segments,
        GROUP=8,
        AHEAD=ahead,
        MODE=str(mode),
        UPCAST=INTERPRETED,
        num_warps=t.warps,
        num_stages=t.stages,
        enable_fp_fusion=False,
        launch_pdl=mode is LaunchMode.CHAINED,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
