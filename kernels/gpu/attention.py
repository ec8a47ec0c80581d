"""Attention over KV rows that lie in address ranges: one arithmetic for decode, verify trees and prompt chunks.

A row's keys are its slot's committed prefix and then its path, by place in the sequence. They are cut at fixed places
into splits of SPLIT keys; within a split, blocks of BLOCK keys update a running maximum, sum and weighted value in
order; splits are then merged in order. Sums over keys go through matrix instructions, maxima are exact, the rest is
elementwise, so the bits do not depend on how rows are tiled.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import (
    INTERPRETED,
    LaunchMode,
    default_mode,
    join_chain,
    require_cuda_or_interpreter,
)
from kernels.gpu.rotary import HeadShape, RowTables

SPLIT = 256
BLOCK = 64
_SPLIT = tl.constexpr(SPLIT)
_BLOCK = tl.constexpr(BLOCK)
_FLOOR = tl.constexpr(-1.0e30)
TILE_ROWS = 64
"""Consecutive rows of one chain that a program of `attend_tiles` takes."""


@triton.jit
def _fold(q, k, v, keep, top, total, acc, scale, UPCAST: tl.constexpr):
    """Fold one block of keys into a split's running state.

    q: (rows, dim). k, v: (BLOCK, dim). keep: (rows, BLOCK). top: (rows,). total: (rows, 16), every column the same sum:
    the width is the matrix instruction's. acc: (rows, dim). `scale` includes log2(e).
    """
    score = tl.dot(q, tl.trans(k)) * scale
    score = tl.where(keep, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, axis=1))
    weight = tl.exp2(score - new_top[:, None]).to(tl.bfloat16)
    shrink = tl.exp2(top - new_top)
    ones = tl.full((_BLOCK, 16), 1.0, tl.bfloat16)
    if UPCAST:
        weight = weight.to(tl.float32)
        ones = ones.to(tl.float32)
    total = tl.dot(weight, ones, total * shrink[:, None])
    acc = tl.dot(weight, v, acc * shrink[:, None])
    return new_top, total, acc


@triton.jit
def _merge(top, total, acc, split_top, split_total, split_acc):
    """Merge the next split into the state of those before it. top, total: (rows,); acc: (rows, dim)."""
    new_top = tl.maximum(top, split_top)
    old = tl.exp2(top - new_top)
    new = tl.exp2(split_top - new_top)
    return new_top, total * old + split_total * new, acc * old[:, None] + split_acc * new[:, None]


@triton.jit
def _rows_kernel(
    q_ptr,
    slot_ptr,
    position_ptr,
    prefix_ptr,
    path_start_ptr,
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
    DEPENDENT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    join_chain(DEPENDENT)
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(position_ptr + row) + 1
    first = split * _SPLIT
    if first < length:
        group: tl.constexpr = HEADS // KV_HEADS
        slot = tl.load(slot_ptr + row).to(tl.int64)
        prefix = tl.load(prefix_ptr + row)
        path = path_ptr + tl.load(path_start_ptr + row)
        k_base = tl.load(base_ptr + slot * slot_tensors + k_tensor).to(tl.pointer_type(tl.bfloat16))
        v_base = tl.load(base_ptr + slot * slot_tensors + v_tensor).to(tl.pointer_type(tl.bfloat16))
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
        top = tl.full((BM,), _FLOOR, tl.float32)
        total = tl.zeros((BM, 16), tl.float32)
        acc = tl.zeros((BM, DIM), tl.float32)
        for start in range(first, tl.minimum(first + _SPLIT, length), _BLOCK):
            place = start + tl.arange(0, _BLOCK)
            live = place < length
            on_path = live & (place >= prefix)
            kv_row = tl.where(on_path, tl.load(path + (place - prefix), mask=on_path, other=0), place).to(tl.int64)
            offset = kv_row[:, None] * (KV_HEADS * DIM) + kv_head * DIM + dims[None, :]
            k = tl.load(k_base + offset, mask=live[:, None], other=0.0)
            v = tl.load(v_base + offset, mask=live[:, None], other=0.0)
            if UPCAST:
                k = k.to(tl.float32)
                v = v.to(tl.float32)
            top, total, acc = _fold(q, k, v, live[None, :], top, total, acc, scale, UPCAST)
        part = (row.to(tl.int64) * max_splits + split) * HEADS + head
        tl.store(top_ptr + part, top, mask=member_live)
        tl.store(total_ptr + part, tl.max(total, axis=1), mask=member_live)
        tl.store(acc_ptr + part[:, None] * DIM + dims[None, :], acc, mask=member_live[:, None])


@triton.jit
def _merge_kernel(
    top_ptr,
    total_ptr,
    acc_ptr,
    position_ptr,
    out_ptr,
    max_splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    join_chain(DEPENDENT)
    row = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(position_ptr + row) + 1
    dims = tl.arange(0, DIM)
    one = tl.arange(0, 1)
    top = tl.full((1,), _FLOOR, tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, DIM), tl.float32)
    for split in range(0, tl.cdiv(length, _SPLIT)):
        part = (row.to(tl.int64) * max_splits + split) * HEADS + head + one
        split_top = tl.load(top_ptr + part)
        split_total = tl.load(total_ptr + part)
        split_acc = tl.load(acc_ptr + part[:, None] * DIM + dims[None, :])
        top, total, acc = _merge(top, total, acc, split_top, split_total, split_acc)
    # The sum turns a negative zero, which an empty block may flip, into the positive one.
    out = acc / total[:, None] + 0.0
    target = out_ptr + (row.to(tl.int64) * HEADS + head + one)[:, None] * DIM + dims[None, :]
    tl.store(target, out.to(tl.bfloat16))


@triton.jit
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
    DEPENDENT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    join_chain(DEPENDENT)
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    row0 = tl.load(tile_row_ptr + tile)
    count = tl.load(tile_rows_ptr + tile)
    member = tl.arange(0, BM)
    live_row = member < count
    dims = tl.arange(0, DIM)
    slot = tl.load(slot_ptr + row0).to(tl.int64)
    position = tl.load(position_ptr + row0) + member
    length = tl.load(position_ptr + row0) + count
    k_base = tl.load(base_ptr + slot * slot_tensors + k_tensor).to(tl.pointer_type(tl.bfloat16))
    v_base = tl.load(base_ptr + slot * slot_tensors + v_tensor).to(tl.pointer_type(tl.bfloat16))
    lane = ((row0 + member).to(tl.int64) * HEADS + head)[:, None] * DIM + dims[None, :]
    q = tl.load(q_ptr + lane, mask=live_row[:, None], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    top = tl.full((BM,), _FLOOR, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, DIM), tl.float32)
    for first in range(0, length, _SPLIT):
        split_top = tl.full((BM,), _FLOOR, tl.float32)
        split_total = tl.zeros((BM, 16), tl.float32)
        split_acc = tl.zeros((BM, DIM), tl.float32)
        for start in range(first, tl.minimum(first + _SPLIT, length), _BLOCK):
            place = start + tl.arange(0, _BLOCK)
            live = place < length
            offset = place.to(tl.int64)[:, None] * (KV_HEADS * DIM) + kv_head * DIM + dims[None, :]
            k = tl.load(k_base + offset, mask=live[:, None], other=0.0)
            v = tl.load(v_base + offset, mask=live[:, None], other=0.0)
            if UPCAST:
                k = k.to(tl.float32)
                v = v.to(tl.float32)
            keep = place[None, :] <= position[:, None]
            split_top, split_total, split_acc = _fold(
                q, k, v, keep, split_top, split_total, split_acc, scale, UPCAST
            )
        top, total, acc = _merge(top, total, acc, split_top, tl.max(split_total, axis=1), split_acc)
    out = acc / total[:, None] + 0.0
    tl.store(out_ptr + lane, out.to(tl.bfloat16), mask=live_row[:, None])


class AttentionScratch:
    """Partial results of the splits, float32: grown to the largest (rows, splits) that a pass may need."""

    def __init__(self, rows: int, max_len: int, shape: HeadShape, device: torch.device) -> None:
        self.max_splits = -(-max_len // SPLIT)
        parts = rows * self.max_splits * shape.heads
        self.top = torch.empty(parts, dtype=torch.float32, device=device)
        self.total = torch.empty(parts, dtype=torch.float32, device=device)
        self.acc = torch.empty(parts * shape.dim, dtype=torch.float32, device=device)

    @property
    def nbytes(self) -> int:
        return self.top.nbytes + self.total.nbytes + self.acc.nbytes


def attend_rows(
    q: torch.Tensor,
    out: torch.Tensor,
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

    q, out: (rows, heads * dim) bf16. `splits` bounds the rows' lengths: at least ceil(longest / SPLIT), at most
    `scratch.max_splits`; programs past a row's length end at once.
    """
    require_cuda_or_interpreter(q, out, kv_base)
    n = q.shape[0]
    if not 0 < splits <= scratch.max_splits:
        raise ValueError(f"splits = {splits}, the scratch holds 1 to {scratch.max_splits}")
    mode = mode if mode is not None else default_mode(q.device)
    scale = math.log2(math.e) / math.sqrt(shape.dim)
    _rows_kernel[(n, shape.kv_heads, splits)](
        q,
        rows.slot,
        rows.position,
        rows.prefix,
        rows.path_start,
        rows.path,
        kv_base,
        scratch.top,
        scratch.total,
        scratch.acc,
        k_tensor,
        v_tensor,
        kv_base.shape[1],
        scratch.max_splits,
        scale,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        DIM=shape.dim,
        BM=max(16, triton.next_power_of_2(shape.group)),
        DEPENDENT=mode.dependent,
        UPCAST=INTERPRETED,
        num_warps=4,
        num_stages=2,
        enable_fp_fusion=False,
        launch_pdl=mode.dependent,
    )
    _merge_kernel[(n, shape.heads)](
        scratch.top,
        scratch.total,
        scratch.acc,
        rows.position,
        out,
        scratch.max_splits,
        HEADS=shape.heads,
        DIM=shape.dim,
        DEPENDENT=mode.dependent,
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=mode.dependent,
    )


def attend_tiles(
    q: torch.Tensor,
    out: torch.Tensor,
    tile_row: torch.Tensor,
    tile_rows: torch.Tensor,
    rows: RowTables,
    kv_base: torch.Tensor,
    k_tensor: int,
    v_tensor: int,
    shape: HeadShape,
    mode: LaunchMode | None = None,
) -> None:
    """Attention of prompt chunks: program (tile, head) takes up to TILE_ROWS consecutive rows of one chain.

    tile_row, tile_rows: (tiles,) int32, a tile's first row and its number of rows. Rows that no tile names are left
    alone, so `attend_rows` may serve them in the same pass.
    """
    require_cuda_or_interpreter(q, out, kv_base, tile_row, tile_rows)
    mode = mode if mode is not None else default_mode(q.device)
    scale = math.log2(math.e) / math.sqrt(shape.dim)
    _tiles_kernel[(tile_row.shape[0], shape.heads)](
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
        BM=TILE_ROWS,
        DEPENDENT=mode.dependent,
        UPCAST=INTERPRETED,
        num_warps=4,
        num_stages=2,
        enable_fp_fusion=False,
        launch_pdl=mode.dependent,
    )
