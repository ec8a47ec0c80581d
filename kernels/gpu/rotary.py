"""Rotary embedding of the queries, and of the keys on their way into the KV cache, with the biases and head norms that
some architectures put before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import LaunchMode, default_mode, join_chain, require_cuda_or_interpreter


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads of a layer: `heads` query heads share `kv_heads` key heads, each `dim` wide."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim


@dataclass(frozen=True, slots=True)
class RowTables:
    """Where rows stand, on the device, int32 and one entry a row (but `path`): the fields of `engine.rows.RowBatch`."""

    slot: torch.Tensor
    position: torch.Tensor
    kv_row: torch.Tensor
    prefix: torch.Tensor
    path_start: torch.Tensor
    path: torch.Tensor


@triton.jit
def _rotary_kv_kernel(
    qkv_ptr,
    bias_ptr,
    q_gain_ptr,
    k_gain_ptr,
    cos_ptr,
    sin_ptr,
    slot_ptr,
    position_ptr,
    kv_row_ptr,
    base_ptr,
    q_ptr,
    k_tensor,
    v_tensor,
    slot_tensors,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    MODE: tl.constexpr,
):
    # 1. Everything but the projections is older than the chain: read it before waiting.
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim: tl.constexpr = 2 * HALF
    pair = tl.arange(0, HALF)
    first = 2 * pair if INTERLEAVED else pair
    second = first + (1 if INTERLEAVED else HALF)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    kv_row = tl.load(kv_row_ptr + row).to(tl.int64)
    angle = tl.load(position_ptr + row).to(tl.int64) * HALF + pair
    cos = tl.load(cos_ptr + angle)
    sin = tl.load(sin_ptr + angle)
    k_base = tl.load(base_ptr + slot * slot_tensors + k_tensor).to(tl.pointer_type(tl.float16))
    v_base = tl.load(base_ptr + slot * slot_tensors + v_tensor).to(tl.pointer_type(tl.float16))
    join_chain(MODE)
    source = qkv_ptr + row * ((HEADS + 2 * KV_HEADS) * dim) + head * dim
    low = tl.load(source + first).to(tl.float32)
    high = tl.load(source + second).to(tl.float32)
    if HAS_BIAS:
        low += tl.load(bias_ptr + head * dim + first)
        high += tl.load(bias_ptr + head * dim + second)

    # 2. A value goes into the cache as it is.
    if head >= HEADS + KV_HEADS:
        target = v_base + kv_row * (KV_HEADS * dim) + (head - HEADS - KV_HEADS) * dim
        tl.store(target + first, low.to(tl.float16))
        tl.store(target + second, high.to(tl.float16))
    else:
        # 3. A query or key: norm over the head, then rotate each pair by the position's angle.
        if HAS_NORM:
            mean = tl.sum(low * low + high * high, axis=0) / dim
            scale = tl.rsqrt(mean + eps)
            gain = q_gain_ptr if head < HEADS else k_gain_ptr
            low = low * scale * tl.load(gain + first)
            high = high * scale * tl.load(gain + second)
        turned_low = (low * cos - high * sin).to(tl.float16)
        turned_high = (high * cos + low * sin).to(tl.float16)
        if head < HEADS:
            target = q_ptr + row * (HEADS * dim) + head * dim
        else:
            target = k_base + kv_row * (KV_HEADS * dim) + (head - HEADS) * dim
        tl.store(target + first, turned_low)
        tl.store(target + second, turned_high)


def rotary_kv(
    qkv: torch.Tensor,
    q: torch.Tensor,
    rows: RowTables,
    kv_base: torch.Tensor,
    k_tensor: int,
    v_tensor: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
    shape: HeadShape,
    interleaved: bool,
    bias: torch.Tensor | None = None,
    head_gains: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 1e-6,
    mode: LaunchMode | None = None,
) -> None:
    """Split a pass's fused projections: rotated queries to `q`, rotated keys and the values to their KV rows.

    qkv: (rows, shape.qkv_width) float32, query heads first, then keys, then values. q: (rows, heads * dim) float16.
    kv_base: (slots, tensors) int64, the address of row 0 of each KV tensor; `k_tensor` and `v_tensor` are this layer's
    columns. cos, sin: (positions, dim / 2) float32; pair i is dimensions (2i, 2i + 1)
    where `interleaved`, else (i, i + dim / 2). bias: (qkv_width,) float32. head_gains: gains of the norms over
    each query and key head, (dim,) float32 each. KV rows are (kv_heads * dim) float16.
    """
    require_cuda_or_interpreter(qkv, q, kv_base, cos, sin, rows.slot)
    n = qkv.shape[0]
    if qkv.shape[1] != shape.qkv_width or q.shape != (n, shape.heads * shape.dim):
        raise ValueError(f"qkv {tuple(qkv.shape)} and q {tuple(q.shape)} do not fit {shape}")
    if not (qkv.is_contiguous() and q.is_contiguous()) or shape.dim & (shape.dim - 1):
        raise ValueError(f"qkv and q must be contiguous and the head a power of two wide, not {shape.dim}")
    mode = mode if mode is not None else default_mode(qkv.device)
    q_gain, k_gain = head_gains if head_gains is not None else (cos, cos)
    _rotary_kv_kernel[(n, shape.heads + 2 * shape.kv_heads)](
        qkv,
        bias if bias is not None else cos,
        q_gain,
        k_gain,
        cos,
        sin,
        rows.slot,
        rows.position,
        rows.kv_row,
        kv_base,
        q,
        k_tensor,
        v_tensor,
        kv_base.shape[1],
        eps,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        HALF=shape.dim // 2,
        INTERLEAVED=interleaved,
        HAS_BIAS=bias is not None,
        HAS_NORM=head_gains is not None,
        MODE=str(mode),
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
