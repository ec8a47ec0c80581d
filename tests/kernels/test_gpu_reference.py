"""The GPU kernels against their torch reference on small shapes: on a GPU, without one in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.execution.rows import SlotRows, pack
from kernels.gpu import argmax as argmax_kernel
from kernels.gpu import reference
from kernels.gpu.attention import SPLIT, AttentionScratch, attend_rows, attend_tiles
from kernels.gpu.kv_moves import move_rows
from kernels.gpu.launch import INTERPRETED
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.norm import embed, rms_norm
from kernels.gpu.rotary import HeadShape, RowTables, rotary_kv
from kernels.gpu.tiles import Tile

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
SHAPE = HeadShape(heads=2, kv_heads=1, dim=16)
CHUNK = 10 if INTERPRETED else 2048


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-2) -> None:
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < tolerance


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("epilogue", list(Epilogue))
@pytest.mark.parametrize("rows", [1, 19])
def test_linear(rows: int, epilogue: Epilogue, swap: bool) -> None:
    k, n = 192, 40
    x = randn(rows, k, seed=1)
    w = randn(2 * n if epilogue is Epilogue.GATED else n, k, seed=2)
    if epilogue is Epilogue.ADD:
        out = randn(rows, n, seed=3, dtype=torch.float32)
    else:
        out = poisoned(rows, n, dtype=torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32)
    want = reference.linear(x, w, out, epilogue)
    linear(x, w, out, epilogue, tile=Tile(16, 32, 64, 4, 2, swap=swap))
    close(out, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_in_segments(dtype: torch.dtype) -> None:
    x, w = randn(3, 576, seed=1, dtype=dtype), randn(32, 576, seed=2, dtype=dtype)
    out = poisoned(3, 16, dtype=dtype)
    linear(x, w, out, Epilogue.GATED, tile=Tile(16, 16, 64, 4, 2), segments=4)
    close(out, reference.linear(x, w, out, Epilogue.GATED))


@pytest.mark.parametrize("epilogue", [Epilogue.ADD, Epilogue.GATED])
def test_linear_by_programs_that_finish_a_part_of_their_tile(epilogue: Epilogue) -> None:
    x, w = randn(3, 128, seed=1), randn(160 if epilogue is Epilogue.GATED else 80, 128, seed=2)
    kind = torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32
    whole = randn(3, 80, seed=3, dtype=kind)
    part = whole.clone()
    want = reference.linear(x, w, whole, epilogue)
    linear(x, w, whole, epilogue, tile=Tile(16, 32, 128, 4, 2))
    linear(x, w, part, epilogue, tile=Tile(16, 64, 64, 4, 2, swap=True, share=48))
    close(part, want)
    close(part, whole)


@pytest.mark.skipif(
    not INTERPRETED and torch.cuda.get_device_capability() < (9, 0),
    reason="the GPU has no TMA",
)
@pytest.mark.parametrize("epilogue", list(Epilogue))
@pytest.mark.parametrize("swap", [False, True])
def test_linear_by_the_tma(epilogue: Epilogue, swap: bool) -> None:
    x, w = randn(19, 192, seed=1), randn(80 if epilogue is Epilogue.GATED else 40, 192, seed=2)
    if epilogue is Epilogue.ADD:
        out = randn(19, 40, seed=3, dtype=torch.float32)
    else:
        out = poisoned(19, 40, dtype=torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32)
    want = reference.linear(x, w, out, epilogue)
    linear(x, w, out, epilogue, tile=Tile(16, 32, 64, 4, 2, swap=swap, tma=True))
    close(out, want)


@pytest.mark.skipif(
    not INTERPRETED and torch.cuda.get_device_capability() < (9, 0),
    reason="the GPU has no TMA",
)
def test_the_tma_refuses_rows_that_are_not_aligned() -> None:
    x, w = randn(19, 193, seed=1)[:, :192], randn(40, 192, seed=2)
    with pytest.raises(ValueError, match="multiples of 16 bytes; those of x are 193 values apart"):
        linear(x, w, poisoned(19, 40, dtype=torch.float32), tile=Tile(16, 32, 64, 4, 2, tma=True))


def test_linear_refuses_a_depth_that_the_tile_does_not_divide() -> None:
    with pytest.raises(ValueError, match="k = 192 in 1 segments is not a multiple"):
        linear(
            randn(1, 192, seed=1),
            randn(16, 192, seed=2),
            poisoned(1, 16, dtype=torch.float32),
            tile=Tile(16, 16, 128, 4, 2),
        )


def test_a_row_has_the_same_norm_alone_and_in_a_chunk() -> None:
    h = randn(128, 72, seed=4, dtype=torch.float32)
    gain = randn(72, seed=5, dtype=torch.float32)
    order = torch.arange(128, dtype=torch.int32, device=DEVICE)
    chunk = poisoned(128, 72, dtype=torch.bfloat16)
    rms_norm(h, order, gain, chunk, eps=1e-5)
    close(chunk, reference.rms_norm(h, gain, 1e-5))
    for first, count in ((127, 1), (3, 2), (60, 7)):
        few = poisoned(count, 72, dtype=torch.bfloat16)
        rms_norm(h, order[first : first + count], gain, few, eps=1e-5)
        assert torch.equal(few, chunk[first : first + count])


def test_norm_takes_the_rows_named() -> None:
    h = randn(5, 72, seed=4, dtype=torch.float32)
    gain = randn(72, seed=5, dtype=torch.float32)
    index = torch.tensor([4, 0, 4], dtype=torch.int32, device=DEVICE)
    out = poisoned(3, 72, dtype=torch.bfloat16)
    rms_norm(h, index, gain, out, eps=1e-5)
    close(out, reference.rms_norm(h[index.long()], gain, 1e-5))


def test_embed() -> None:
    table = randn(9, 72, seed=6)
    token = torch.tensor([8, 0, 3], dtype=torch.int32, device=DEVICE)
    h = poisoned(3, 72, dtype=torch.float32)
    embed(token, table, h)
    assert torch.equal(h, table[token.long()].float())


def test_argmax_takes_the_lowest_of_equals() -> None:
    vocab = 3 * argmax_kernel.BLOCK - 7
    logits = randn(4, vocab, seed=7, dtype=torch.float32)
    logits[0, [17, 5000, 12000]] = 99.0
    logits[1, [5000, 5001, vocab - 1]] = 99.0
    logits[2, vocab - 1] = 99.0
    out = torch.full((4,), -1, dtype=torch.int32, device=DEVICE)
    argmax_kernel.argmax(logits, out, argmax_kernel.ArgmaxScratch(4, vocab, DEVICE))
    assert out.tolist() == [17, 5000, vocab - 1, int(logits[3].argmax())]


def test_argmax_names_no_token_where_the_largest_is_not_finite() -> None:
    vocab = 2 * argmax_kernel.BLOCK + 5
    logits = randn(5, vocab, seed=7, dtype=torch.float32)
    logits[0, 3] = float("nan")
    logits[1, vocab - 1] = float("inf")
    logits[2] = float("-inf")
    logits[3, : vocab - 1] = float("-inf")
    logits[4, [0, vocab - 1]] = torch.tensor([float("-inf"), 99.0], device=DEVICE)
    out = torch.full((5,), 7, dtype=torch.int32, device=DEVICE)
    argmax_kernel.argmax(logits, out, argmax_kernel.ArgmaxScratch(5, vocab, DEVICE))
    assert out.tolist() == [-1, -1, -1, vocab - 1, vocab - 1]


class Caches:
    """KV of some slots, filled with noise, at addresses of a table; rows nobody wrote hold NaN."""

    def __init__(self, slots: int, window: int, shape: HeadShape) -> None:
        self.shape = shape
        self.k = poisoned(slots, window, shape.kv_heads, shape.dim, dtype=torch.float16)
        self.v = torch.full_like(self.k, float("nan"))
        self.base = torch.tensor(
            [[0, self.k[s].data_ptr(), self.v[s].data_ptr()] for s in range(slots)], dtype=torch.int64, device=DEVICE
        )

    def fill(self, slot: int, rows: int) -> None:
        self.k[slot, :rows] = randn(rows, self.shape.kv_heads, self.shape.dim, seed=10 + slot, dtype=torch.float16)
        self.v[slot, :rows] = randn(rows, self.shape.kv_heads, self.shape.dim, seed=20 + slot, dtype=torch.float16)


def tables(shares: list[SlotRows]) -> tuple[RowTables, torch.Tensor]:
    batch = pack(shares)

    def put(a: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).to(DEVICE)

    rows = RowTables(
        *map(put, (batch.slot, batch.position, batch.kv_row, batch.prefix, batch.ancestor_start, batch.ancestors))
    )
    return rows, put(batch.token)


class Turned:
    """Projections of a pass of rows, and what `rotary_kv` makes of some of them in caches that nobody wrote."""

    def __init__(
        self, shares: list[SlotRows], shape: HeadShape, window: int, *, extras: bool, interleaved: bool
    ) -> None:
        self.rows, _ = tables(shares)
        self.shape = shape
        self.interleaved = interleaved
        self.slots, self.window = 1 + max(s.slot for s in shares), window
        self.qkv = randn(len(self.rows.slot), shape.qkv_width, seed=8, dtype=torch.float32)
        angles = torch.outer(torch.arange(float(window)), 0.5 ** torch.arange(shape.dim // 2)).to(DEVICE)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.bias = randn(shape.qkv_width, seed=9, dtype=torch.float32) if extras else None
        gains = [randn(shape.dim, seed=seed, dtype=torch.float32) for seed in (11, 12)]
        self.gains = (gains[0], gains[1]) if extras else None

    def run(self, first: int, count: int) -> tuple[torch.Tensor, Caches]:
        """Rotated queries and the cache that holds the keys and values, of `count` rows alone."""
        part = slice(first, first + count)
        r = self.rows
        rows = RowTables(r.slot[part], r.position[part], r.kv_row[part], r.prefix[part], r.ancestor_start, r.ancestors)
        cache = Caches(self.slots, self.window, self.shape)
        q = poisoned(count, self.shape.heads * self.shape.dim, dtype=torch.float16)
        rotary_kv(
            self.qkv[part], q, rows, kv_base=cache.base, k_tensor=1, v_tensor=2, cos=self.cos, sin=self.sin,
            shape=self.shape, interleaved=self.interleaved, bias=self.bias, head_gains=self.gains, eps=1e-6,
        )  # fmt: skip
        return q, cache

    def stored(self, cache: Caches, first: int, count: int) -> torch.Tensor:
        slot, kv_row = (t[first : first + count].long() for t in (self.rows.slot, self.rows.kv_row))
        return torch.stack([cache.k[slot, kv_row], cache.v[slot, kv_row]])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_rotary_writes_the_cache(extras: bool, interleaved: bool) -> None:
    shape = HeadShape(heads=9, kv_heads=3, dim=16)
    shares = [SlotRows(1, 3, [0, 0], None), SlotRows(0, 7, [0, 0, 0], [-1, 0, 0])]
    made = Turned(shares, shape, 12, extras=extras, interleaved=interleaved)
    q, cache = made.run(0, 5)
    want_q, *want = reference.rotary(
        made.qkv, made.rows.position, made.cos, made.sin, shape, interleaved, made.bias, made.gains, 1e-6
    )
    close(q, want_q.flatten(1))
    close(made.stored(cache, 0, 5), torch.stack(want))
    assert int(cache.k.isfinite().all(-1).all(-1).sum()) == 5
    assert int(cache.v.isfinite().all(-1).all(-1).sum()) == 5


def test_a_row_is_turned_alike_alone_and_in_a_chunk() -> None:
    shares = [SlotRows(0, 5, [0] * (CHUNK - 3)), SlotRows(1, 2, [0] * 3)]
    made = Turned(shares, SHAPE, CHUNK + 5, extras=True, interleaved=False)
    q, cache = made.run(0, CHUNK)
    assert q.isfinite().all()
    for first, count in ((CHUNK - 1, 1), (CHUNK - 4, 2), (0, 7)):
        few_q, few = made.run(first, count)
        assert torch.equal(few_q, q[first : first + count])
        assert torch.equal(made.stored(few, first, count), made.stored(cache, first, count))


def test_attention_of_rows_follows_paths_over_splits() -> None:
    start = SPLIT + 70
    tree = SlotRows(1, start, [0] * 4, [-1, 0, 0, 2])
    rows, _ = tables([SlotRows(0, 2, [0]), tree])
    cache = Caches(2, start + 4, SHAPE)
    cache.fill(0, 3)
    cache.fill(1, start + 4)
    q = randn(5, SHAPE.heads * SHAPE.dim, seed=30, dtype=torch.float16)
    out = torch.full_like(q, float("nan"), dtype=torch.bfloat16)
    scratch = AttentionScratch(6, 2, SHAPE, DEVICE)
    for t in (scratch.top, scratch.total, scratch.acc):
        t.fill_(float("nan"))
    row_ids = torch.tensor([3, 0, 1, 2, 4, 3], dtype=torch.int32, device=DEVICE)
    attend_rows(
        q, out, row_ids, rows=rows, kv_base=cache.base, k_tensor=1, v_tensor=2, shape=SHAPE, scratch=scratch, splits=2
    )
    paths = [[0, 1, 2]] + [[*range(start), *(start + i for i in p)] for p in ([0], [0, 1], [0, 2], [0, 2, 3])]
    for i, path in enumerate(paths):
        slot = int(rows.slot[i])
        want = reference.attend(q[i].view(SHAPE.heads, -1), cache.k[slot, path], cache.v[slot, path], SHAPE)
        close(out[i], want.flatten())


def test_attention_of_a_chunk_equals_its_rows_alone() -> None:
    start, count = SPLIT - 20, 37
    rows, _ = tables([SlotRows(0, start, [0] * count)])
    cache = Caches(1, start + count, SHAPE)
    cache.fill(0, start + count)
    q = randn(count, SHAPE.heads * SHAPE.dim, seed=31, dtype=torch.float16)
    out = torch.full_like(q, float("nan"), dtype=torch.bfloat16)
    tile_row = torch.tensor([0, 30, 0], dtype=torch.int32, device=DEVICE)
    tile_rows = torch.tensor([30, count - 30, 0], dtype=torch.int32, device=DEVICE)
    attend_tiles(
        q, out, tile_row, tile_rows=tile_rows, rows=rows, kv_base=cache.base, k_tensor=1, v_tensor=2, shape=SHAPE
    )
    for i in (0, 19, 20, count - 1):
        keys = start + i + 1
        want = reference.attend(q[i].view(SHAPE.heads, -1), cache.k[0, :keys], cache.v[0, :keys], SHAPE)
        close(out[i], want.flatten())


def test_an_accepted_path_moves_down_in_every_tensor() -> None:
    tensors = [torch.arange(9 * 24, dtype=torch.int16, device=DEVICE).view(9, 24) + 1000 * t for t in range(2)]
    want = [t.clone() for t in tensors]
    for t in want:
        t[[3, 4]] = t[[5, 7]]
    base = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=DEVICE)
    source = torch.tensor([5, 7], dtype=torch.int32, device=DEVICE)
    move_rows(base, base, source, torch.tensor([3, 4], dtype=torch.int32, device=DEVICE), 24)
    for got, expected in zip(tensors, want, strict=True):
        assert torch.equal(got, expected)


def test_rows_are_copied_to_another_slot() -> None:
    slots = torch.arange(2 * 2 * 9 * 24, dtype=torch.int16, device=DEVICE).view(2, 2, 9, 24)
    want = slots.clone()
    want[1, :, 2:7] = slots[0, :, 2:7]
    bases = torch.tensor([[t.data_ptr() for t in slot] for slot in slots], dtype=torch.int64, device=DEVICE)
    rows = torch.arange(2, 7, dtype=torch.int32, device=DEVICE)
    move_rows(bases[0], bases[1], rows, rows, 24)
    assert torch.equal(slots, want)
