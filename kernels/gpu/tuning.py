"""Measures the products' tiles on this GPU: candidates, a bit check of each, the fastest kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.packing import Packed, PackedFormat
from kernels.gpu.skinny import device_of, packed_candidates, skinny, unpack_rows
from kernels.gpu.tile_cache import Key, Measured
from kernels.gpu.tiles import CLASSES, MAX_SKINNY_ROWS, PACKED_CLASSES, PackedTile, Tile
from kernels.gpu.timing import graph_ms

CANDIDATES: dict[int, list[Tile]] = {
    16: [
        Tile(16, 16, 128, 4, 4), Tile(16, 16, 256, 4, 3), Tile(16, 16, 256, 4, 5), Tile(16, 16, 128, 2, 6),
        Tile(16, 16, 512, 4, 3), Tile(16, 32, 128, 4, 4), Tile(16, 32, 128, 4, 6), Tile(16, 32, 256, 4, 3),
        Tile(16, 32, 256, 8, 4), Tile(16, 64, 64, 4, 6), Tile(16, 64, 128, 4, 4), Tile(16, 64, 64, 4, 6, swap=True),
        Tile(16, 64, 128, 4, 4, swap=True), Tile(16, 64, 128, 8, 5), Tile(16, 128, 64, 4, 5, swap=True),
        Tile(16, 16, 256, 4, 6), Tile(16, 32, 256, 4, 5), Tile(16, 32, 128, 4, 8), Tile(16, 64, 128, 4, 6, swap=True),
        Tile(16, 64, 256, 4, 4, swap=True), Tile(16, 32, 512, 4, 3), Tile(16, 32, 256, 4, 4, swap=True),
        Tile(16, 64, 128, 4, 6, swap=True, tma=True), Tile(16, 64, 64, 4, 8, swap=True, tma=True),
        Tile(16, 64, 256, 4, 4, swap=True, tma=True), Tile(16, 64, 128, 4, 8, swap=True, tma=True),
    ],
    32: [
        Tile(32, 32, 128, 4, 4), Tile(32, 16, 256, 4, 3), Tile(32, 64, 64, 4, 6, swap=True), Tile(32, 64, 128, 4, 3),
        Tile(32, 64, 128, 4, 4, swap=True), Tile(32, 128, 64, 4, 5, swap=True), Tile(32, 64, 128, 4, 6, swap=True),
        Tile(32, 32, 256, 4, 4), Tile(32, 64, 128, 4, 6, swap=True, tma=True),
        Tile(32, 64, 64, 4, 8, swap=True, tma=True),
    ],
    64: [
        Tile(64, 32, 128, 4, 3), Tile(64, 64, 64, 4, 5), Tile(64, 64, 128, 4, 3), Tile(64, 64, 64, 4, 5, swap=True),
        Tile(64, 64, 128, 4, 4, swap=True), Tile(64, 128, 64, 4, 4, swap=True), Tile(64, 64, 128, 4, 5, swap=True),
        Tile(64, 64, 128, 4, 5, swap=True, tma=True), Tile(64, 64, 64, 4, 6, swap=True, tma=True),
    ],
    128: [
        Tile(128, 64, 64, 8, 3), Tile(128, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3), Tile(128, 32, 128, 4, 3),
        Tile(128, 64, 128, 8, 3), Tile(128, 64, 64, 4, 4, swap=True), Tile(128, 128, 64, 4, 4, swap=True),
        Tile(128, 32, 128, 4, 4), Tile(128, 64, 128, 4, 4, swap=True), Tile(128, 64, 128, 8, 4),
        Tile(128, 128, 64, 8, 4), Tile(128, 64, 64, 8, 5), Tile(128, 32, 128, 8, 4),
        Tile(128, 64, 64, 8, 6, tma=True), Tile(128, 64, 128, 8, 4, tma=True), Tile(128, 32, 128, 8, 4, tma=True),
        Tile(128, 128, 64, 8, 4, tma=True),
    ],
    512: [
        Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 4, 4),
        Tile(256, 128, 64, 8, 3), Tile(128, 128, 128, 8, 3),
        Tile(128, 64, 64, 4, 4), Tile(128, 256, 64, 8, 4), Tile(128, 128, 64, 8, 4), Tile(64, 256, 64, 8, 4),
        Tile(128, 256, 64, 8, 3, tma=True), Tile(128, 256, 64, 8, 4, tma=True), Tile(128, 128, 64, 8, 4, tma=True),
        Tile(128, 128, 64, 4, 4, tma=True), Tile(128, 128, 64, 8, 3, tma=True),
    ],
}  # fmt: skip
"""Tiles of 16-bit products worth measuring, by the rows they take; the last for any larger batch too."""

SHARED: dict[int, list[Tile]] = {
    16: [Tile(16, 64, 128, 4, 6, swap=True), Tile(16, 64, 64, 4, 6, swap=True)],
    32: [Tile(32, 64, 128, 4, 6, swap=True), Tile(32, 64, 128, 4, 4, swap=True)],
    64: [Tile(64, 64, 128, 4, 5, swap=True), Tile(64, 64, 64, 4, 5, swap=True)],
    128: [Tile(128, 128, 64, 8, 4), Tile(128, 128, 64, 8, 3), Tile(128, 64, 128, 8, 4)],
    512: [],
}  # fmt: skip
"""Tiles worth measuring with programs that finish a part of them. With few rows, 2,048 outputs in tiles of 64 keep 32
multiprocessors busy, and one takes in no more than 64 bytes a cycle; with 128 rows every program reads all rows."""

REFERENCE = Tile(16, 16, 64, 4, 4)
"""The tile whose bits the others must give, a row alone."""
COLD_BYTES = 400_000_000
"""Weights that a chain of products reads before it comes to the first again: past any cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product that a model computes: `n` finished outputs over `k`; `format` None for 16-bit weights of `dtype`."""

    n: int
    k: int
    epilogue: Epilogue
    format: PackedFormat | None
    dtype: torch.dtype = torch.float16

    @property
    def weight_rows(self) -> int:
        return 2 * self.n if self.epilogue is Epilogue.GATED else self.n

    def __str__(self) -> str:
        return f"{self.weight_rows} x {self.k} {self.format or str(self.dtype).removeprefix('torch.')} {self.epilogue}"


AnyTile = TypeVar("AnyTile", Tile, PackedTile)
Say = Callable[[str], None]
MakePacked = Callable[[PackedFormat, int, int], Packed]


def fits(tile: Tile, epilogue: Epilogue) -> bool:
    """Whether the tile's pipeline fits a block's shared memory and registers on compute capability 9.0."""
    weights = 2 if epilogue is Epilogue.GATED else 1
    depth = tile.bk * 2 * (tile.bm + weights * tile.bn) * tile.stages
    registers = tile.bm * tile.bn * weights / (tile.warps * 32)
    return depth <= 220_000 and registers <= 160


def candidates(row_class: int, n: int, processors: int) -> list[Tile]:
    """Tiles worth measuring for a class of rows and `n` outputs on a GPU of `processors`."""
    rows = min(max(row_class, min(CANDIDATES)), max(CANDIDATES))
    return CANDIDATES[rows] + [tile for base in SHARED[rows] for tile in _shares(base, n, processors)]


def measured_rows(row_class: int) -> int:
    """The rows by which a class is measured."""
    return {2: 1, CLASSES[-1]: 2048}.get(row_class, row_class)


def _shares(base: Tile, n: int, processors: int) -> list[Tile]:
    """`base` with shares of its outputs, multiples of 16: such as make whole waves of programs, and plain fractions."""
    waves = {-(-n // (count * processors)) for count in (1, 2, 3, 4)}
    wanted = {-(-share // 16) * 16 for share in waves | {base.bn // 2, base.bn * 5 // 8, base.bn * 3 // 4}}
    return [replace(base, share=share) for share in sorted(wanted) if base.bn // 4 <= share < base.bn]


def tune(products: Sequence[Product], make_packed: MakePacked, say: Say) -> Measured:
    """The fastest tile of each product and row class on the current GPU. A candidate that gives other bits, or does
    not run here, is left out and told to `say`, as is what was chosen."""
    found = Measured()
    for product in products:
        if product.format is None:
            _tune_dense(product, found.dense, say)
        else:
            _tune_packed(product, product.format, make_packed, found.packed, say)
        torch.cuda.empty_cache()
    return found


def _tune_dense(product: Product, table: dict[Key, Tile], say: Say) -> None:
    n, k, epilogue = product.n, product.k, product.epilogue
    size = product.weight_rows * k * 2
    ws = [_random(product.weight_rows, k, product.dtype) for _ in range(_copies(size))]
    processors = torch.cuda.get_device_properties(ws[0].device).multi_processor_count
    for row_class in CLASSES:
        if row_class > MAX_SKINNY_ROWS and n > 65536:
            continue
        rows = measured_rows(row_class)
        x, start = _operands(product, rows)
        last = start[-1:].clone()
        linear(x[-1:], ws[0], last, epilogue, tile=REFERENCE)
        scores: list[tuple[float, Tile]] = []
        for tile in candidates(row_class, n, processors):
            if k % tile.bk or not fits(tile, epilogue):
                continue
            out = start.clone()
            try:
                linear(x, ws[0], out, epilogue, tile=tile)
                if not torch.equal(out[-1:], last):
                    say(f"{product}, {rows} rows: {tile} gives other bits and is left out")
                    continue
                scores.append((graph_ms(partial(_dense_chain, ws, x, out, epilogue, tile), 9) / len(ws), tile))
            except Exception as error:  # noqa: BLE001 - the other candidates still count
                say(f"{product}, {rows} rows: {tile} does not run: {str(error)[:120]}")
        _keep(product, row_class, size=size, scores=scores, table=table, what=str(epilogue), say=say)


def _tune_packed(
    product: Product, form: PackedFormat, make_packed: MakePacked, table: dict[Key, PackedTile], say: Say
) -> None:
    n, k, epilogue = product.n, product.k, product.epilogue
    one = make_packed(form, product.weight_rows, k)
    ws = [one, *(make_packed(form, product.weight_rows, k) for _ in range(_copies(one.nbytes) - 1))]
    dense = torch.empty((product.weight_rows, k), dtype=torch.float16, device="cuda")
    unpack_rows(one, dense)
    for row_class in PACKED_CLASSES:
        rows = measured_rows(row_class)
        x, start = _operands(product, rows)
        want = start.clone()
        linear(x, dense, want, epilogue, segments=one.segments, alpha=one.alpha)
        scores: list[tuple[float, PackedTile]] = []
        for tile in packed_candidates(one, n, rows, epilogue, device_of(torch.cuda.current_device())):
            out = start.clone()
            try:
                skinny(x, one, out, epilogue, tile=tile)
                if not torch.equal(out, want):
                    say(f"{product}, {rows} rows: {tile} gives other bits and is left out")
                    continue
                scores.append((graph_ms(partial(_packed_chain, ws, x, out, epilogue, tile), 9) / len(ws), tile))
            except Exception as error:  # noqa: BLE001 - the other candidates still count
                say(f"{product}, {rows} rows: {tile} does not run: {str(error)[:120]}")
        _keep(product, row_class, size=one.nbytes, scores=scores, table=table, what=f"{form}-{epilogue}", say=say)


def _keep(
    product: Product,
    row_class: int,
    *,
    size: int,
    scores: list[tuple[float, AnyTile]],
    table: dict[Key, AnyTile],
    what: str,
    say: Say,
) -> None:
    if scores:
        ms, tile = min(scores, key=lambda s: s[0])
        table[product.n, product.k, what, row_class] = tile
        say(f"{product}, up to {row_class} rows: {size / ms / 1e9:.2f} TB/s with {tile}")


def _operands(product: Product, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows, and an output that is poisoned, or random where it is added to."""
    x = torch.randn(rows, product.k, device="cuda").to(product.dtype)
    if product.epilogue is Epilogue.ADD:
        return x, torch.randn(rows, product.n, device="cuda")
    kind = product.dtype if product.epilogue is Epilogue.GATED else torch.float32
    return x, torch.full((rows, product.n), float("nan"), dtype=kind, device="cuda")


def _random(n: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(n, k, dtype=dtype, device="cuda").normal_(0.0, k**-0.5)


def _copies(size: int) -> int:
    return max(2, min(12, -(-COLD_BYTES // size)))


def _dense_chain(ws: list[torch.Tensor], x: torch.Tensor, out: torch.Tensor, epilogue: Epilogue, tile: Tile) -> None:
    for w in ws:
        linear(x, w, out, epilogue, tile=tile)


def _packed_chain(ws: list[Packed], x: torch.Tensor, out: torch.Tensor, epilogue: Epilogue, tile: PackedTile) -> None:
    for w in ws:
        skinny(x, w, out, epilogue, tile=tile, mode=LaunchMode.CHAINED)
