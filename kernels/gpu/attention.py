"""Attention over KV rows that lie in address ranges: one arithmetic for decode, verify trees and prompt chunks.

A row's keys are its slot's committed prefix and then its path, by place in the sequence. They are cut at fixed places
into splits of SPLIT keys, each of which has its maximum, its sum and its weighted value; splits are merged in order.
Sums over keys go through matrix instructions, maxima are exact, the rest is elementwise, so the bits do not depend on
how rows are tiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import (
    INTERPRETED,
    LaunchMode,
    default_mode,
    pdl_join,
    require_cuda_or_interpreter,
)
from kernels.gpu.rotary import HeadShape, RowTables

SPLIT = 128
_SPLIT = tl.constexpr(SPLIT)
_FLOOR = tl.constexpr(-1.0e30)
_UNROLL = tl.constexpr(8)
TILE_ROWS = 128
"""Consecutive rows of one chain that a tile of `attend_tiles` has at most."""


@triton.jit
def _kv_pointer(entry_ptr):
    """The address in a table entry as a float16 pointer; ranges start at pages, so wide loads are allowed."""
    return tl.multiple_of(tl.load(entry_ptr).to(tl.pointer_type(tl.float16)), 16)


@triton.jit
def _split(q, k, v, keep, scale, MASKED: tl.constexpr, UPCAST: tl.constexpr):
    """One split: the maximum, sum and weighted value of each row over its keys.

    q: (rows, dim). k, v: (SPLIT, dim). keep: broadcasts to (rows, SPLIT); not looked at unless MASKED. Returns (rows,),
    (rows,) and (rows, dim). A row that keeps no key has the floor, 0 and 0. `scale` includes log2(e).
    """
    score = tl.dot(q, tl.trans(k)) * scale
    if MASKED:
        score = tl.where(keep, score, float("-inf"))
    top = tl.maximum(tl.max(score, axis=1), _FLOOR)
    weight = tl.exp2(score - top[:, None]).to(tl.float16)
    # The sum goes through the matrix instruction too, whose order does not depend on the tile: 16 equal columns.
    ones = tl.full((_SPLIT, 16), 1.0, tl.float16)
    if UPCAST:
        weight = weight.to(tl.float32)
        ones = ones.to(tl.float32)
    return top, tl.max(tl.dot(weight, ones), axis=1), tl.dot(weight, v)


@triton.jit
def _merge(top, total, acc, split_top, split_total, split_acc):
    """Merge the next split into the state of those before it. top, total: (rows,); acc: (rows, dim)."""
    new_top = tl.maximum(top, split_top)
    old = tl.exp2(top - new_top)
    new = tl.exp2(split_top - new_top)
    return new_top, total * old + split_total * new, acc * old[:, None] + split_acc * new[:, None]


# A round at another length must not compile anew.
@triton.jit(do_not_specialize=["k_tensor", "v_tensor", "max_splits"])
def _rows_kernel(
    q_ptr,
    row_ptr,
    slot_ptr,
    position_ptr,
    prefix_ptr,
    ancestor_start_ptr,
    path_ptr,
    base_ptr,
    top_ptr,
    total_ptr,
    acc_ptr,
    k_tensor,
    v_tensor,
    slot_tensors,
    max_splits,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BM: tl.constexpr,
    MODE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    # 1. The batch's tables are older than the chain: read them before waiting.
    entry = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(row_ptr + entry)
    length = tl.load(position_ptr + row) + 1
    slot = tl.load(slot_ptr + row).to(tl.int64)
    prefix = tl.load(prefix_ptr + row)
    path = path_ptr + tl.load(ancestor_start_ptr + row)
    k_base = _kv_pointer(base_ptr + slot * slot_tensors + k_tensor)
    v_base = _kv_pointer(base_ptr + slot * slot_tensors + v_tensor)
    first = split * _SPLIT
    pdl_join(MODE)

    # 2. One split of the row's keys, for the query heads that share a KV head.
    if first < length:
        group: tl.constexpr = HEADS // KV_HEADS
        dims = tl.arange(0, DIM)
        member = tl.arange(0, BM)
        member_live = member < group
        head = kv_head * group + member
        q = tl.load(
            q_ptr + row.to(tl.int64) * (HEADS * DIM) + head[:, None] * DIM + dims[None, :],
            mask=member_live[:, None],
            other=0.0,
        )
        if UPCAST:
            q = q.to(tl.float32)
        place = first + tl.arange(0, _SPLIT)
        live = place < length
        on_path = live & (place >= prefix)
        kv_row = tl.where(on_path, tl.load(path + (place - prefix), mask=on_path, other=0), place).to(tl.int64)
        offset = kv_row[:, None] * (KV_HEADS * DIM) + kv_head * DIM + dims[None, :]
        k = tl.load(k_base + offset, mask=live[:, None], other=0.0)
        v = tl.load(v_base + offset, mask=live[:, None], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        top, total, acc = _split(q, k, v, live[None, :], scale, True, UPCAST)
        part = (entry.to(tl.int64) * max_splits + split) * HEADS + head
        tl.store(top_ptr + part, top, mask=member_live)
        tl.store(total_ptr + part, total, mask=member_live)
        tl.store(acc_ptr + part[:, None] * DIM + dims[None, :], acc, mask=member_live[:, None])


# A round at another length must not compile anew.
@triton.jit(do_not_specialize=["max_splits"])
def _merge_kernel(
    top_ptr,
    total_ptr,
    acc_ptr,
    row_ptr,
    position_ptr,
    out_ptr,
    max_splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    MODE: tl.constexpr,
):
    entry = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(row_ptr + entry)
    length = tl.load(position_ptr + row) + 1
    pdl_join(MODE)
    dims = tl.arange(0, DIM)
    one = tl.arange(0, 1)
    top = tl.full((1,), _FLOOR, tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, DIM), tl.float32)
    splits = tl.cdiv(length, _SPLIT)
    for first in range(0, splits, _UNROLL):
        # Unrolled, so that the loads of several splits are in flight; an absent split changes nothing.
        for step in tl.static_range(_UNROLL):
            split = first + step
            part = (entry.to(tl.int64) * max_splits + split) * HEADS + head + one
            live = (one + split) < splits
            split_top = tl.load(top_ptr + part, mask=live, other=_FLOOR)
            split_total = tl.load(total_ptr + part, mask=live, other=0.0)
            split_acc = tl.load(acc_ptr + part[:, None] * DIM + dims[None, :], mask=live[:, None], other=0.0)
            top, total, acc = _merge(top, total, acc, split_top, split_total, split_acc)
    # The sum turns a negative zero, which an empty block may flip, into the positive one.
    out = acc / total[:, None] + 0.0
    target = out_ptr + (row.to(tl.int64) * HEADS + head + one)[:, None] * DIM + dims[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty))


# One form for every layer: each is compiled while the model loads.
@triton.jit(do_not_specialize=["k_tensor", "v_tensor"])
def _tiles_kernel(
    q_ptr,
    tile_row_ptr,
    tile_rows_ptr,
    slot_ptr,
    position_ptr,
    base_ptr,
    out_ptr,
    k_tensor,
    v_tensor,
    slot_tensors,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BM: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    part = tl.program_id(2) * BM
    row0 = tl.load(tile_row_ptr + tile) + part
    count = tl.minimum(tl.load(tile_rows_ptr + tile) - part, BM)
    if count <= 0:
        pdl_join(MODE)
        return
    member = tl.arange(0, BM)
    live_row = member < count
    dims = tl.arange(0, DIM)
    slot = tl.load(slot_ptr + row0).to(tl.int64)
    position0 = tl.load(position_ptr + row0)
    position = position0 + member
    length = position0 + count
    k_base = _kv_pointer(base_ptr + slot * slot_tensors + k_tensor) + kv_head * DIM
    v_base = _kv_pointer(base_ptr + slot * slot_tensors + v_tensor) + kv_head * DIM
    pdl_join(MODE)
    lane = ((row0 + member).to(tl.int64) * HEADS + head)[:, None] * DIM + dims[None, :]
    q = tl.load(q_ptr + lane, mask=live_row[:, None], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    top = tl.full((BM,), _FLOOR, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, DIM), tl.float32)
    place = tl.arange(0, _SPLIT)
    stride: tl.constexpr = _SPLIT * KV_HEADS * DIM
    within = place[:, None] * (KV_HEADS * DIM) + dims[None, :]
    # 1. Splits that every row sees whole.
    whole = (position0 + 1) // _SPLIT * _SPLIT
    for _ in tl.range(0, whole, _SPLIT, num_stages=STAGES):
        k = tl.load(k_base + within)
        v = tl.load(v_base + within)
        k_base += stride
        v_base += stride
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        split_top, split_total, split_acc = _split(q, k, v, live_row[:, None], scale, False, UPCAST)
        top, total, acc = _merge(top, total, acc, split_top, split_total, split_acc)
    # 2. Those in which a row's own place lies.
    for first in tl.range(whole, length, _SPLIT, num_stages=1):
        live = (first + place < length)[:, None]
        k = tl.load(k_base + within, mask=live, other=0.0)
        v = tl.load(v_base + within, mask=live, other=0.0)
        k_base += stride
        v_base += stride
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        keep = first + place[None, :] <= position[:, None]
        split_top, split_total, split_acc = _split(q, k, v, keep, scale, True, UPCAST)
        top, total, acc = _merge(top, total, acc, split_top, split_total, split_acc)
    # Rows past the tile's own have no sum; they are not stored.
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None] + 0.0
    tl.store(out_ptr + lane, out.to(out_ptr.dtype.element_ty), mask=live_row[:, None])


class AttentionScratch:
    """Partial results of `entries` rows over `splits` splits, float32."""

    def __init__(self, entries: int, splits: int, shape: HeadShape, device: torch.device) -> None:
        self.entries = entries
        self.splits = splits
        parts = entries * splits * shape.heads
        self.top = torch.empty(parts, dtype=torch.float32, device=device)
        self.total = torch.empty(parts, dtype=torch.float32, device=device)
        self.acc = torch.empty(parts * shape.dim, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        return self.top.nbytes + self.total.nbytes + self.acc.nbytes


def attend_rows(
    q: torch.Tensor,
    out: torch.Tensor,
    row_ids: torch.Tensor,
    *,
    rows: RowTables,
    kv_base: torch.Tensor,
    k_tensor: int,
    v_tensor: int,
    shape: HeadShape,
    scratch: AttentionScratch,
    splits: int,
    mode: LaunchMode | None = None,
) -> None:
    """Attention of single rows, each over its own path: decode and verify trees.

    q: (rows, heads * dim) float16; out: the same, bf16. row_ids: (entries,) int32, the rows to attend;
    a row named twice is computed twice, to the same bits. `splits` bounds the rows' lengths: at least
    ceil(longest / SPLIT); programs past a row's length end at once. `scratch` holds that many entries and splits.
    """
    require_cuda_or_interpreter(q, out, kv_base, row_ids)
    n = row_ids.shape[0]
    if n * splits > scratch.entries * scratch.splits:
        raise ValueError(f"{n} rows over {splits} splits; the scratch holds {scratch.entries} over {scratch.splits}")
    mode = mode if mode is not None else default_mode(q.device)
    scale = math.log2(math.e) / math.sqrt(shape.dim)
    _rows_kernel[(n, shape.kv_heads, splits)](
        q,
        row_ids,
        rows.slot,
        rows.position,
        rows.prefix,
        rows.ancestor_start,
        rows.ancestors,
        kv_base,
        scratch.top,
        scratch.total,
        scratch.acc,
        k_tensor,
        v_tensor,
        kv_base.shape[1],
        splits,
        scale,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        DIM=shape.dim,
        BM=max(16, triton.next_power_of_2(shape.group)),
        MODE=str(mode),
        UPCAST=INTERPRETED,
        num_warps=4,
        num_stages=3,
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
    _merge_kernel[(n, shape.heads)](
        scratch.top,
        scratch.total,
        scratch.acc,
        row_ids,
        rows.position,
        out,
        splits,
        HEADS=shape.heads,
        DIM=shape.dim,
        MODE=str(mode),
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )


@dataclass(frozen=True, slots=True)
class TileForm:
    """How a tile is worked on: rows and warps of a program, and splits whose keys are in flight."""

    rows: int
    warps: int
    stages: int


_SMALL, _LARGE = TileForm(64, 8, 1), TileForm(128, 8, 2)
_LARGE_NEEDS = 200 << 10
"""Bytes of shared memory a block, above what two splits of 128-wide heads and their queries take."""


@cache
def tile_form(device: torch.device) -> TileForm:
    """The form that a GPU's shared memory allows; all give the same bits."""
    if device.type != "cuda":
        return _SMALL
    held = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]  # torch's stub lacks it
    return _LARGE if held >= _LARGE_NEEDS else _SMALL


def attend_tiles(
    q: torch.Tensor,
    out: torch.Tensor,
    tile_row: torch.Tensor,
    *,
    tile_rows: torch.Tensor,
    rows: RowTables,
    kv_base: torch.Tensor,
    k_tensor: int,
    v_tensor: int,
    shape: HeadShape,
    mode: LaunchMode | None = None,
) -> None:
    """Attention of prompt chunks: a tile is up to TILE_ROWS consecutive rows of one chain, for which programs of fewer
    rows may share the work.

    tile_row, tile_rows: (tiles,) int32, a tile's first row and its number of rows. Rows that no tile names are left
    alone, so `attend_rows` may serve them in the same batch.
    """
    require_cuda_or_interpreter(q, out, kv_base, tile_row, tile_rows)
    mode = mode if mode is not None else default_mode(q.device)
    scale = math.log2(math.e) / math.sqrt(shape.dim)
    form = tile_form(q.device)
    _tiles_kernel[(tile_row.shape[0], shape.heads, TILE_ROWS // form.rows)](
        q,
        tile_row,
        tile_rows,
        rows.slot,
        rows.position,
        kv_base,
        out,
        k_tensor,
        v_tensor,
        kv_base.shape[1],
        scale,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        DIM=shape.dim,
        BM=form.rows,
        STAGES=form.stages,
        MODE=str(mode),
        UPCAST=INTERPRETED,
        num_warps=form.warps,
        enable_fp_fusion=False,
        launch_pdl=mode is not LaunchMode.PLAIN,
    )
