"""RMS norm of the residual stream, and the token embedding that starts it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import LaunchMode, default_mode, pdl_join, require_cuda_or_interpreter


@triton.jit
def _rms_norm_kernel(h_ptr, index_ptr, g_ptr, out_ptr, width, eps, BLOCK: tl.constexpr, MODE: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    live = cols < width
    gain = tl.load(g_ptr + cols, mask=live, other=0.0)
    row = tl.program_id(0)
    source = tl.load(index_ptr + row).to(tl.int64)
    pdl_join(MODE)
    h = tl.load(h_ptr + source * width + cols, mask=live, other=0.0)
    mean = tl.sum(h * h, axis=0) / width
    out = h * tl.rsqrt(mean + eps) * gain
    tl.store(out_ptr + row.to(tl.int64) * width + cols, out.to(out_ptr.dtype.element_ty), mask=live)


def rms_norm(
    h: torch.Tensor,
    index: torch.Tensor,
    gain: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float,
    mode: LaunchMode | None = None,
) -> None:
    """out[i] = h[index[i]] / sqrt(mean(h[index[i]]^2) + eps) * gain.

    h: (any, width) float32. index: (rows,) int32. gain: (width,) float32. out: (rows, width) bf16. One program a row,
    so a row's sum has one order whatever else is normalised.
    """
    require_cuda_or_interpreter(h, index, gain, out)
    rows, width = out.shape
    if h.shape[1] != width or gain.shape != (width,) or index.shape != (rows,):
        raise ValueError(f"h {tuple(h.shape)}, gain {tuple(gain.shape)}, index {tuple(index.shape)} for {rows}x{width}")
    if not (h.is_contiguous() and out.is_contiguous()):
        raise ValueError("h and out must be contiguous")
    mode = mode if mode is not None else default_mode(h.device)
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(rows,)](
        h,
        index,
        gain,
        out,
        width,
        eps,
        BLOCK=block,
        MODE=str(mode),
        num_warps=min(16, max(1, block // 512)),
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )


@triton.jit
def _embed_kernel(token_ptr, table_ptr, h_ptr, width, BLOCK: tl.constexpr, MODE: tl.constexpr):
    pdl_join(MODE)
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    live = cols < width
    token = tl.load(token_ptr + row).to(tl.int64)
    value = tl.load(table_ptr + token * width + cols, mask=live, other=0.0)
    tl.store(h_ptr + row * width + cols, value.to(tl.float32), mask=live)


def embed(token: torch.Tensor, table: torch.Tensor, h: torch.Tensor, mode: LaunchMode | None = None) -> None:
    """h[i] = table[token[i]]. token: (rows,) int32; table: (vocab, width) bf16; h: (rows, width) float32."""
    require_cuda_or_interpreter(token, table, h)
    rows, width = h.shape
    if table.shape[1] != width or token.shape != (rows,):
        raise ValueError(f"table {tuple(table.shape)} and token {tuple(token.shape)} for h {tuple(h.shape)}")
    mode = mode if mode is not None else default_mode(h.device)
    block = triton.next_power_of_2(width)
    _embed_kernel[(rows,)](
        token,
        table,
        h,
        width,
        BLOCK=block,
        MODE=str(mode),
        num_warps=min(16, max(1, block // 512)),
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
