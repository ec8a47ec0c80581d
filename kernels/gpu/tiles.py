"""Tile tables of the matrix products: data measured on a device, with a default that is right for any.

A tile never decides a result's bits: every tile adds the products of a row along K in the same order, 16 at a time. It
only decides how fast the weights stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.gpu.tile_data import MEASURED, MEASURED_PACKED

MAX_SKINNY_ROWS = 128
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Tile:
    """One launch shape: `bm` rows by `bn` outputs, `bk` deep. `swap` makes the weights the first operand of the matrix
    instruction. `share` is how many outputs a program finishes where fewer than `bn`, so that programs fill the
    multiprocessors evenly; 0 stands for all. `tma` brings the operands by the tensor memory accelerator
    (`tma.py`)."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    swap: bool = False
    share: int = 0
    tma: bool = False

    @property
    def outputs(self) -> int:
        """Outputs of a program."""
        return self.share or self.bn


@dataclass(frozen=True, slots=True)
class PackedTile:
    """One launch shape of the packed kernel: 16-row `tiles` of weights a block, `depth` steps in its warps' rings."""

    tiles: int
    depth: int


def bucket(rows: int) -> int:
    """The smallest row bucket that holds `rows`, or a multiple of the largest."""
    for size in ROW_BUCKETS:
        if rows <= size:
            return size
    return -(-rows // MAX_SKINNY_ROWS) * MAX_SKINNY_ROWS


def row_counts(max_rows: int) -> list[int]:
    """The row buckets up to the one that holds `max_rows`, each by its own size."""
    last = bucket(max_rows)
    return [*(r for r in ROW_BUCKETS if r <= last), *range(2 * MAX_SKINNY_ROWS, last + 1, MAX_SKINNY_ROWS)]


def default_tile(rows: int, n: int, k: int, *, tma: bool = False) -> Tile:
    """A tile that is right on every GPU of compute capability 8.0 or newer, for any n and any k divisible by 64;
    faster for prompts where the GPU has the tensor memory accelerator, `tma` (compute capability 9.0)."""
    bk = 128 if k % 128 == 0 else 64
    if rows <= 16:
        return Tile(16, 16 if n <= 8192 else 32, bk, 4, 4)
    if rows <= 32:
        return Tile(32, 32, bk, 4, 4)
    if rows <= 64:
        return Tile(64, 32 if n <= 8192 else 64, bk, 4, 3)
    if rows <= MAX_SKINNY_ROWS:
        return Tile(128, 64, 64, 8, 3)
    return Tile(128, 128, 64, 8, 4, tma=True) if tma else Tile(128, 128, 64, 8, 3)


def segmented_tile(rows: int, *, gated: bool) -> Tile:
    """A tile for products in segments: a second accumulator leaves less room, and segments end at multiples of 64."""
    if rows <= 64:
        return Tile(64, 32 if gated else 64, 64, 4, 4)
    if rows <= MAX_SKINNY_ROWS or gated:
        return Tile(128, 64, 64, 8, 3)
    return Tile(128, 128, 64, 8, 3)


CLASSES = (2, 16, 32, 64, 128, 512, 4096)
"""Row counts are measured in classes, each up to its number; the last stands for any larger batch."""
PACKED_CLASSES = (2, 8, 16, 32, 64)
"""The same for packed weights."""

TABLES: dict[str, dict[tuple[int, int, str, int], Tile]] = {
    gpu: {row[:4]: Tile(*row[4:]) for row in rows} for gpu, rows in MEASURED.items()
}
"""Per device name: (n, k, epilogue, class) to the measured tile."""

PACKED_TABLES: dict[str, dict[tuple[int, int, str, int], PackedTile]] = {
    gpu: {row[:4]: PackedTile(*row[4:]) for row in rows} for gpu, rows in MEASURED_PACKED.items()
}
"""The same for packed weights, whose key has `form-epilogue`."""


def row_class(rows: int) -> int:
    """The class that stands for a batch of `rows` rows."""
    return next((c for c in CLASSES if rows <= c), CLASSES[-1])


def packed_class(rows: int) -> int:
    """The class that stands for packed products of `rows` rows."""
    return next((c for c in PACKED_CLASSES if rows <= c), PACKED_CLASSES[-1])
