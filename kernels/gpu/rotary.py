"""Rotary embedding of the queries, and of the keys on their way into the KV cache, with the biases and head norms that
some architectures put before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import LaunchMode, default_mode, pdl_join, require_cuda_or_interpreter

_GROUP = 8
_WARPS = 4
"""A program's heads and warps, the same for every batch so that a head's norm has one order. A program a head would be
98,304 of them for 2,048 rows of 48 heads, each waiting for the same four loads in a row to move 768 bytes."""


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
    """Where rows stand, on the device, int32 and one entry a row (but `ancestors`): the fields of
    `kernels.program.RowBatch`."""

    slot: torch.Tensor
    position: torch.Tensor
    kv_row: torch.Tensor
    prefix: torch.Tensor
    ancestor_start: torch.Tensor
    ancestors: torch.Tensor


@triton.jit
def _load_pairs(ptr, offset, live, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The halves (first, second) of the pairs of some heads. offset: (heads, 1), where each begins; live: which are."""
    heads: tl.constexpr = offset.shape[0]
    if INTERLEAVED:
        both = tl.load(ptr + offset + tl.arange(0, 2 * HALF)[None, :], mask=live, other=0.0)
        low, high = tl.split(tl.reshape(both, (heads, HALF, 2)))
    else:
        pair = tl.arange(0, HALF)[None, :]
        low = tl.load(ptr + offset + pair, mask=live, other=0.0)
        high = tl.load(ptr + offset + HALF + pair, mask=live, other=0.0)
    return low, high


@triton.jit
def _store_pairs(ptr, offset, live, low, high, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """What `_load_pairs` loads, as float16."""
    heads: tl.constexpr = offset.shape[0]
    low = low.to(tl.float16)
    high = high.to(tl.float16)
    if INTERLEAVED:
        both = tl.reshape(tl.join(low, high), (heads, 2 * HALF))
        tl.store(ptr + offset + tl.arange(0, 2 * HALF)[None, :], both, mask=live)
    else:
        pair = tl.arange(0, HALF)[None, :]
        tl.store(ptr + offset + pair, low, mask=live)
        tl.store(ptr + offset + HALF + pair, high, mask=live)


@triton.jit(do_not_specialize=["k_tensor", "v_tensor"])
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
    GROUP: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    MODE: tl.constexpr,
):
    # 1. Which row, and which of its heads: GROUP at most, all queries, all keys or all values.
    dim: tl.constexpr = 2 * HALF
    q_groups: tl.constexpr = (HEADS + GROUP - 1) // GROUP
    kv_groups: tl.constexpr = (KV_HEADS + GROUP - 1) // GROUP
    groups: tl.constexpr = q_groups + 2 * kv_groups
    row = (tl.program_id(0) // groups).to(tl.int64)
    part = tl.program_id(0) % groups
    is_query = part < q_groups
    is_value = part >= q_groups + kv_groups
    part -= tl.where(is_query, 0, tl.where(is_value, q_groups + kv_groups, q_groups))
    column = tl.where(is_query, 0, tl.where(is_value, HEADS + KV_HEADS, HEADS)) * dim
    member = part * GROUP + tl.arange(0, GROUP)
    live = (member < tl.where(is_query, HEADS, KV_HEADS))[:, None]
    offset = (member * dim)[:, None]

    # 2. Everything but the projections is older than the chain: read it before waiting.
    slot = tl.load(slot_ptr + row).to(tl.int64)
    kv_row = tl.load(kv_row_ptr + row).to(tl.int64)
    angle = tl.load(position_ptr + row).to(tl.int64) * HALF + tl.arange(0, HALF)
    cos = tl.load(cos_ptr + angle)[None, :]
    sin = tl.load(sin_ptr + angle)[None, :]
    cache = tl.load(base_ptr + slot * slot_tensors + tl.where(is_value, v_tensor, k_tensor))
    cache += kv_row * (KV_HEADS * dim * 2)
    queries = q_ptr.to(tl.int64) + row * (HEADS * dim * 2)
    # Ranges start at pages and rows are multiples of 16 bytes, so wide stores are allowed.
    target = tl.multiple_of(tl.where(is_query, queries, cache).to(tl.pointer_type(tl.float16)), 16)
    pdl_join(MODE)
    source = qkv_ptr + row * ((HEADS + 2 * KV_HEADS) * dim) + column
    low, high = _load_pairs(source, offset, live, HALF, INTERLEAVED)
    if HAS_BIAS:
        bias_low, bias_high = _load_pairs(bias_ptr + column, offset, live, HALF, INTERLEAVED)
        low += bias_low
        high += bias_high

    # 3. A value goes into the cache as it is.
    if is_value:
        _store_pairs(target, offset, live, low, high, HALF, INTERLEAVED)
    else:
        # 4. A query or key: norm over the head, then rotate each pair by the position's angle.
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(low * low + high * high, axis=1) / dim + eps)[:, None]
            gain = q_gain_ptr if is_query else k_gain_ptr
            gain_low, gain_high = _load_pairs(gain, tl.zeros_like(offset), live, HALF, INTERLEAVED)
            low = low * scale * gain_low
            high = high * scale * gain_high
        _store_pairs(target, offset, live, low * cos - high * sin, high * cos + low * sin, HALF, INTERLEAVED)


def rotary_kv(
    qkv: torch.Tensor,
    q: torch.Tensor,
    rows: RowTables,
    *,
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
    """Split a batch's fused projections: rotated queries to `q`, rotated keys and the values to their KV rows.

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
    groups = -(-shape.heads // _GROUP) + 2 * -(-shape.kv_heads // _GROUP)
    _rotary_kv_kernel[(n * groups,)](
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
        GROUP=_GROUP,
        INTERLEAVED=interleaved,
        HAS_BIAS=bias is not None,
        HAS_NORM=head_gains is not None,
        MODE=str(mode),
        num_warps=_WARPS,
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
