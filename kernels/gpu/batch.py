"""The tables of one batch on the device: rows padded to a bucket, attention split into single rows and chain tiles, one
upload."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.gpu.attention import SPLIT, TILE_ROWS
from kernels.gpu.rotary import RowTables
from kernels.gpu.tiles import MAX_SKINNY_ROWS, bucket, row_counts
from kernels.program import RowBatch

MIN_TILE = 17
"""Rows of a chain from which on a tile beats single rows: below it the tile would be mostly padding."""
_ANCESTORS_PER_ROW = 64
_MIN_SPLITS = 4
_WARMUP_PARTS = 2048
"""Rows times splits of the largest round that is warmed up: its partial results take 32 MB at 32 heads of 128."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What decides a captured graph: row bucket, single rows and tiles of the attention, splits, logit rows. A size of
    zero leaves the part out."""

    rows: int
    single: int
    splits: int
    tiles: int
    logits: int


@dataclass(frozen=True, slots=True)
class BatchTables:
    """Views of a batch's tables on the device, padded to its shape."""

    rows: RowTables
    token: torch.Tensor
    single: torch.Tensor
    tile_row: torch.Tensor
    tile_rows: torch.Tensor
    logit: torch.Tensor


NO_ROWS = RowBatch(*[np.zeros(0, np.int32)] * 8)
"""A batch of padding alone."""


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length() if n else 0


def _splits(longest: int) -> int:
    return max(_MIN_SPLITS, _power(-(-longest // SPLIT)))


def warmup_shapes(slots: int, window: int, max_rows: int) -> list[BatchShape]:
    """The shapes that an engine of `slots` slots of up to `window` rows will meet: rounds of a row a slot at every
    length, then prompts and chunks of them, of up to `max_rows` rows, with and without logits."""
    most = _splits(window)
    widths = [r for r in row_counts(slots) if r <= MAX_SKINNY_ROWS]
    lengths = [s for s in (_MIN_SPLITS << i for i in range(most.bit_length())) if s <= most]
    shapes = [BatchShape(r, r, s, 0, r) for r in widths for s in lengths if r * s <= _WARMUP_PARTS]
    for rows in row_counts(max_rows):
        if rows < MIN_TILE:
            shapes.append(BatchShape(rows, rows, _MIN_SPLITS, 0, 1))
        else:
            tiles = _power(-(-rows // TILE_ROWS))
            shapes.append(BatchShape(rows, 0, 0, tiles, 1))
    shapes.append(replace(shapes[-1], logits=0))
    return list(dict.fromkeys(shapes))


def plan(rows: RowBatch) -> tuple[BatchShape, NDArray[np.int32], list[tuple[int, int]]]:
    """The batch's shape, the rows that attend alone, and its tiles as (first row, rows).

    A maximal run of at least MIN_TILE rows of one slot, each following the one before and alone on its path, is cut
    into tiles; every other row attends alone. Either gives the same bits.
    """
    n = rows.n
    lone = np.diff(rows.ancestor_start) == 1
    follows = np.zeros(n, bool)
    follows[1:] = (
        lone[1:]
        & lone[:-1]
        & (rows.slot[1:] == rows.slot[:-1])
        & (rows.prefix[1:] == rows.prefix[:-1] + 1)
        & (rows.kv_row[1:] == rows.kv_row[:-1] + 1)
        & (rows.kv_row[1:] == rows.prefix[1:])
        & (rows.kv_row[:-1] == rows.prefix[:-1])
    )
    starts = np.flatnonzero(~follows)
    ends = np.append(starts[1:], n)
    alone = np.ones(n, bool)
    tiles: list[tuple[int, int]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start >= MIN_TILE:
            alone[start:end] = False
            tiles += [(r, min(TILE_ROWS, end - r)) for r in range(start, end, TILE_ROWS)]
    single = np.flatnonzero(alone).astype(np.int32)
    longest = int(rows.position[single].max()) + 1 if len(single) else 0
    shape = BatchShape(
        rows=bucket(n),
        single=_power(len(single)),
        splits=_splits(longest) if len(single) else 0,
        tiles=_power(len(tiles)),
        logits=_power(len(rows.logit_rows)),
    )
    return shape, single, tiles


class TableBuffers:
    """One int32 buffer on the device and its pinned copy on the host, holding every table of a batch."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.max_rows = bucket(max_rows)
        self.max_ancestors = self.max_rows * _ANCESTORS_PER_ROW
        r = self.max_rows
        sizes = {
            "slot": r,
            "position": r,
            "kv_row": r,
            "prefix": r,
            "ancestor_start": r + 1,
            "token": r,
            "single": _power(r),
            "tile_row": _power(r),
            "tile_rows": _power(r),
            "logit": _power(r),
            "ancestors": self.max_ancestors,
        }
        total = sum(sizes.values())
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self._spans: dict[str, slice] = {}
        at = 0
        for name, size in sizes.items():
            self._spans[name] = slice(at, at + size)
            at += size

    @property
    def nbytes(self) -> int:
        return self._device.nbytes

    def upload(
        self, rows: RowBatch, shape: BatchShape, single: NDArray[np.int32], tiles: list[tuple[int, int]], spare: int
    ) -> None:
        """Fill the tables and start their copy. Padding rows are the first row of the slot `spare`, seeing themselves
        alone. The caller has synchronised since the last upload. Raises ValueError where the paths do not fit."""
        if len(rows.ancestors) > self.max_ancestors:
            raise ValueError(
                f"the batch has {len(rows.ancestors)} ancestors; {self.max_ancestors} fit ({_ANCESTORS_PER_ROW} a row)"
            )
        host = self._host.numpy()

        def put(name: str, values: NDArray[np.int32], size: int, pad: int) -> None:
            view = host[self._spans[name]]
            view[: len(values)] = values
            view[len(values) : size] = pad

        n = shape.rows
        put("slot", rows.slot, n, spare)
        put("token", rows.token, n, 0)
        put("position", rows.position, n, 0)
        put("kv_row", rows.kv_row, n, 0)
        put("prefix", rows.prefix, n, 1)
        put("ancestor_start", rows.ancestor_start, n + 1, 0)
        put("ancestors", rows.ancestors, len(rows.ancestors), 0)
        put("logit", rows.logit_rows, shape.logits, 0)
        idle = np.arange(rows.n, n, dtype=np.int32)[: shape.single - len(single)]
        put("single", np.concatenate([single, idle]), shape.single, int(single[0]) if len(single) else 0)
        put("tile_row", np.array([t[0] for t in tiles], np.int32), shape.tiles, 0)
        put("tile_rows", np.array([t[1] for t in tiles], np.int32), shape.tiles, 0)
        self._device.copy_(self._host, non_blocking=True)

    def views(self, shape: BatchShape) -> BatchTables:
        """The tables as the kernels of a batch of this shape read them."""

        def view(name: str, size: int) -> torch.Tensor:
            return self._device[self._spans[name]][:size]

        n = shape.rows
        return BatchTables(
            rows=RowTables(
                slot=view("slot", n),
                position=view("position", n),
                kv_row=view("kv_row", n),
                prefix=view("prefix", n),
                ancestor_start=view("ancestor_start", n + 1),
                ancestors=view("ancestors", self.max_ancestors),
            ),
            token=view("token", n),
            single=view("single", shape.single),
            tile_row=view("tile_row", shape.tiles),
            tile_rows=view("tile_rows", shape.tiles),
            logit=view("logit", shape.logits),
        )
