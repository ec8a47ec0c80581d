"""Tiles that were measured on this box: a file in the user's cache, by GPU and by the versions that compile kernels.

{"dense": [[n, k, epilogue, class, bm, bn, bk, warps, stages, swap, share, tma], ...],
 "packed": [[n, k, form-epilogue, class, tiles, depth], ...]}
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import triton

from kernels.cache_dir import cache_dir
from kernels.gpu.tiles import (
    CLASSES,
    MAX_SKINNY_ROWS,
    PACKED_CLASSES,
    PACKED_TABLES,
    TABLES,
    PackedTile,
    Tile,
    default_tile,
    packed_class,
    row_class,
)

Key = tuple[int, int, str, int]
"""n, k, what is computed, row class."""

_POWERS = frozenset(1 << i for i in range(4, 10))


class DamagedTiles(ValueError):
    """A file of tiles that holds something else. The message names what."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Tiles by product: of 16-bit weights, and of packed ones, whose key has `form-epilogue`."""

    dense: dict[Key, Tile] = field(default_factory=dict)
    packed: dict[Key, PackedTile] = field(default_factory=dict)


def path_for(gpu: str) -> Path:
    """Where the tiles of a GPU named so are kept."""
    name = f"{gpu}-torch-{torch.__version__}-triton-{triton.__version__}"
    return cache_dir() / "tiles" / (re.sub(r"[^A-Za-z0-9.+]+", "-", name) + ".json")


def write(path: Path, measured: Measured) -> None:
    """Keep `measured`, as a whole or not at all. Raises OSError."""
    content = {
        "dense": [
            [*key, t.bm, t.bn, t.bk, t.warps, t.stages, t.swap, t.share, t.tma] for key, t in measured.dense.items()
        ],
        "packed": [[*key, t.tiles, t.depth] for key, t in measured.packed.items()],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(content, file)
    os.replace(file.name, path)


def read(path: Path) -> Measured:
    """The tiles of a file. Raises DamagedTiles, and OSError where it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedTiles(f"no JSON: {error}") from error
    if not isinstance(content, dict) or set(content) != {"dense", "packed"}:
        raise DamagedTiles("an object with dense and packed is expected")
    if not all(isinstance(rows, list) and all(isinstance(r, list) for r in rows) for rows in content.values()):
        raise DamagedTiles("dense and packed must be lists of lists")
    return Measured(dict(map(_dense, content["dense"])), dict(map(_packed, content["packed"])))


@cache
def measured_here(gpu: str) -> Measured:
    """What was measured on this box for a GPU named so, read once a process: nothing where there is no file. A file
    that is damaged is ignored with a warning."""
    path = path_for(gpu)
    try:
        return read(path)
    except FileNotFoundError:
        return Measured()
    except (DamagedTiles, OSError) as error:
        logging.getLogger(__name__).warning("%s is ignored: %s; `tandem doctor --tune` writes it anew", path, error)
        return Measured()


def tile_for(gpu: str, rows: int, n: int, k: int, epilogue: str, *, tma: bool = False) -> Tile:
    """The tile for a product of 16-bit weights: measured on this box, or on a GPU named so, or the default. Where a
    chunk's class was not measured, that of larger batches serves."""
    classes = (row_class(rows), CLASSES[-1]) if rows > MAX_SKINNY_ROWS else (row_class(rows),)
    for table in (measured_here(gpu).dense, TABLES.get(gpu, {})):
        for one in classes:
            if (n, k, epilogue, one) in table:
                return table[n, k, epilogue, one]
    return default_tile(rows, n, k, tma=tma)


def packed_tile_for(gpu: str, rows: int, n: int, k: int, product: str) -> PackedTile | None:
    """The tile for a product, `form-epilogue`, of packed weights: measured on this box, or on a GPU named so; None
    where neither was."""
    key = (n, k, product, packed_class(rows))
    return measured_here(gpu).packed.get(key) or PACKED_TABLES.get(gpu, {}).get(key)


def _key(row: list[object], classes: tuple[int, ...]) -> Key:
    n, k, what, rows = row[:4]
    if not (_whole(n, 1) and _whole(k, 64) and isinstance(what, str) and _whole(rows, 1) and rows in classes):
        raise DamagedTiles(f"{row} names no product")
    assert isinstance(n, int) and isinstance(k, int) and isinstance(rows, int)  # noqa: PT018 - for the type checker
    return n, k, what, rows


def _dense(row: list[object]) -> tuple[Key, Tile]:
    if len(row) != 12:
        raise DamagedTiles(f"{row} has {len(row)} fields, a dense tile has 12")
    key = _key(row, CLASSES)
    bm, bn, bk, warps, stages, swap, share, tma = row[4:]
    fits = all(_whole(v, 1) for v in (bm, bn, bk, warps, stages))
    fits = fits and {bm, bn, bk} <= _POWERS and warps in (1, 2, 4, 8) and _whole(stages, 1, 8)
    fits = fits and isinstance(swap, bool) and isinstance(tma, bool) and not (tma and share)
    if not fits or key[1] % int(str(bk)) or not _whole(share, 0, int(str(bn)) - 1):
        raise DamagedTiles(f"{row} is no tile")
    numbers = [int(str(value)) for value in (bm, bn, bk, warps, stages)]
    return key, Tile(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], bool(swap), int(str(share)), bool(tma))


def _packed(row: list[object]) -> tuple[Key, PackedTile]:
    if len(row) != 6:
        raise DamagedTiles(f"{row} has {len(row)} fields, a packed tile has 6")
    key = _key(row, PACKED_CLASSES)
    tiles, depth = row[4:]
    if not (_whole(tiles, 1, 4) and _whole(depth, 2, 8)) or (key[2].endswith("gated") and int(str(tiles)) % 2):
        raise DamagedTiles(f"{row} is no tile")
    return key, PackedTile(int(str(tiles)), int(str(depth)))


def _whole(value: object, low: int, high: int = 1 << 30) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
