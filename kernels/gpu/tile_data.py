"""Measured tiles of the matrix products, per card. Written by the tuning stage; a row never changes a result's bits."""

from __future__ import annotations

Row = (
    tuple[int, int, str, int, int, int, int, int, int, bool]
    | tuple[int, int, str, int, int, int, int, int, int, bool, int]
    | tuple[int, int, str, int, int, int, int, int, int, bool, int, bool]
)
"""n, k, epilogue, row class, then the tile: bm, bn, bk, warps, stages, swap, and share and bulk where it has them."""

MEASURED: dict[str, tuple[Row, ...]] = {
    "NVIDIA H200": (
        (3072, 2048, "store", 2, 16, 64, 128, 4, 6, True),
        (3072, 2048, "store", 16, 16, 64, 128, 4, 6, True),
        (3072, 2048, "store", 32, 32, 64, 128, 4, 6, True),
        (3072, 2048, "store", 64, 64, 64, 128, 4, 4, True),
        (3072, 2048, "store", 128, 128, 32, 128, 4, 4, False),
        (3072, 2048, "store", 4096, 128, 256, 64, 8, 3, False),
        (2048, 2048, "add", 2, 16, 64, 128, 4, 6, True),
        (2048, 2048, "add", 16, 16, 64, 128, 4, 6, True),
        (2048, 2048, "add", 32, 32, 64, 128, 4, 6, True),
        (2048, 2048, "add", 64, 64, 64, 128, 4, 4, True),
        (2048, 2048, "add", 128, 128, 32, 128, 4, 4, False),
        (2048, 2048, "add", 4096, 128, 256, 64, 8, 3, False),
        (8192, 2048, "gated", 2, 16, 64, 64, 4, 6, True),
        (8192, 2048, "gated", 16, 16, 64, 64, 4, 6, True),
        (8192, 2048, "gated", 32, 32, 64, 128, 4, 4, True),
        (8192, 2048, "gated", 64, 64, 32, 128, 4, 3, False),
        (8192, 2048, "gated", 128, 128, 64, 128, 8, 3, False),
        (8192, 2048, "gated", 4096, 128, 128, 64, 8, 3, False),
        (2048, 8192, "add", 2, 16, 64, 128, 4, 6, True),
        (2048, 8192, "add", 16, 16, 64, 128, 4, 6, True),
        (2048, 8192, "add", 32, 32, 64, 128, 4, 6, True),
        (2048, 8192, "add", 64, 64, 64, 128, 4, 5, True),
        (2048, 8192, "add", 128, 128, 64, 128, 8, 4, False),
        (2048, 8192, "add", 4096, 128, 256, 64, 8, 3, False),
        (128256, 2048, "store", 2, 16, 64, 128, 4, 4, True),
        (128256, 2048, "store", 16, 16, 64, 128, 4, 4, False),
        (128256, 2048, "store", 32, 32, 64, 128, 4, 4, True),
        (128256, 2048, "store", 64, 64, 64, 128, 4, 3, False),
        (128256, 2048, "store", 128, 128, 128, 64, 8, 3, False),
        (6144, 4096, "store", 2, 16, 64, 128, 4, 6, True),
        (6144, 4096, "store", 16, 16, 64, 128, 4, 6, True),
        (6144, 4096, "store", 32, 32, 64, 128, 4, 6, True),
        (6144, 4096, "store", 64, 64, 64, 128, 4, 5, True),
        (6144, 4096, "store", 128, 128, 64, 128, 8, 4, False),
        (6144, 4096, "store", 4096, 128, 256, 64, 8, 3, False),
        (4096, 4096, "add", 2, 16, 64, 128, 4, 6, True),
        (4096, 4096, "add", 16, 16, 64, 128, 4, 6, True),
        (4096, 4096, "add", 32, 32, 64, 128, 4, 6, True),
        (4096, 4096, "add", 64, 64, 64, 128, 4, 5, True),
        (4096, 4096, "add", 128, 128, 64, 128, 8, 4, False),
        (4096, 4096, "add", 4096, 128, 256, 64, 8, 3, False),
        (12288, 4096, "gated", 2, 16, 32, 128, 4, 4, False),
        (12288, 4096, "gated", 16, 16, 32, 128, 4, 4, False),
        (12288, 4096, "gated", 32, 32, 64, 128, 4, 3, False),
        (12288, 4096, "gated", 64, 64, 128, 64, 4, 4, True),
        (12288, 4096, "gated", 128, 128, 64, 64, 8, 3, False),
        (12288, 4096, "gated", 4096, 128, 128, 64, 8, 3, False),
        (4096, 12288, "add", 2, 16, 64, 256, 4, 4, True),
        (4096, 12288, "add", 16, 16, 64, 256, 4, 4, True),
        (4096, 12288, "add", 32, 32, 64, 128, 4, 6, True),
        (4096, 12288, "add", 64, 64, 64, 128, 4, 5, True),
        (4096, 12288, "add", 128, 128, 64, 128, 8, 4, False),
        (4096, 12288, "add", 4096, 128, 256, 64, 8, 3, False),
        (151936, 4096, "store", 2, 16, 64, 128, 4, 4, True),
        (151936, 4096, "store", 16, 16, 64, 128, 4, 4, True),
        (151936, 4096, "store", 32, 32, 64, 128, 4, 4, True),
        (151936, 4096, "store", 64, 64, 64, 128, 4, 3, False),
        (151936, 4096, "store", 128, 128, 64, 64, 8, 3, False),
    ),
}

PackedRow = tuple[int, int, str, int, int, int]
"""n, k, form-epilogue, row class, then the tile: tiles, depth."""

MEASURED_PACKED: dict[str, tuple[PackedRow, ...]] = {}
"""The same for packed weights; where a card or a product is missing, the tile is computed (`skinny.py`)."""
