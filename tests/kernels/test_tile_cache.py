"""Tiles measured on this box: kept, read before the table that ships, ignored where damaged."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.gpu import tile_cache
from kernels.gpu.tile_cache import (
    DamagedTiles,
    Measured,
    measured_here,
    packed_tile_for,
    path_for,
    read,
    tile_for,
    write,
)
from kernels.gpu.tiles import PACKED_TABLES, TABLES, PackedTile, Tile, default_tile

GPU = "NVIDIA H200"
DENSE = {(4096, 4096, "add", 16): Tile(32, 64, 128, 8, 3, swap=True, share=48)}
PACKED = {(4096, 4096, "q4-add", 16): PackedTile(3, 4)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    measured_here.cache_clear()
    yield
    measured_here.cache_clear()


def test_what_was_measured_here_comes_first() -> None:
    write(path_for(GPU), Measured(DENSE, PACKED))
    assert read(path_for(GPU)) == Measured(DENSE, PACKED)
    assert tile_for(GPU, 5, 4096, 4096, "add") == DENSE[4096, 4096, "add", 16]
    assert packed_tile_for(GPU, 12, 4096, 4096, "q4-add") == PackedTile(3, 4)
    assert tile_for(GPU, 1, 4096, 4096, "add") == TABLES[GPU][4096, 4096, "add", 2]
    assert tile_for("another GPU", 5, 4096, 4096, "add") == default_tile(5, 4096, 4096)


def test_without_a_file_the_tables_that_ship_serve() -> None:
    assert tile_for(GPU, 5, 4096, 4096, "add") == TABLES[GPU][4096, 4096, "add", 16]
    assert packed_tile_for(GPU, 5, 4096, 4096, "q4-add") == PACKED_TABLES[GPU][4096, 4096, "q4-add", 8]
    assert packed_tile_for(GPU, 5, 4096, 4096, "q6-add") is None


def test_prompts_of_a_gpu_with_a_tma_use_it() -> None:
    assert tile_for("another GPU", 300, 4096, 4096, "add", tma=True).tma
    assert not tile_for("another GPU", 300, 4096, 4096, "add").tma
    assert tile_for("another GPU", 8, 4096, 4096, "add", tma=True) == default_tile(8, 4096, 4096)


def test_a_chunk_that_was_not_measured_takes_the_tile_of_larger_passes() -> None:
    own, larger = Tile(128, 128, 64, 8, 3), Tile(256, 128, 64, 8, 3)
    write(path_for(GPU), Measured({(4096, 4096, "add", 512): own, (64, 4096, "add", 4096): larger}, {}))
    assert tile_for(GPU, 300, 64, 4096, "add") == larger
    assert tile_for(GPU, 300, 4096, 4096, "add") == own
    assert tile_for(GPU, 2048, 4096, 4096, "add") == TABLES[GPU][4096, 4096, "add", 4096]


def test_the_file_is_the_gpus_and_its_compilers() -> None:
    name = path_for("NVIDIA A/B 3").name
    assert name.startswith("NVIDIA-A-B-3-torch-")
    assert "triton-" in name
    assert path_for(GPU).parent.name == "tiles"


GOOD = [4096, 4096, "add", 16, 32, 64, 128, 8, 3, True, 48, False]
BAD = {
    "no JSON": b"{",
    "dense and packed is expected": b"[]",
    "lists of lists": b'{"dense": [3], "packed": []}',
    "has 2 fields": b'{"dense": [[1, 2]], "packed": []}',
    "names no product": json.dumps({"dense": [[4096, 4096, "add", 17, *GOOD[4:]]], "packed": []}).encode(),
    r"\] is no tile": json.dumps({"dense": [[*GOOD[:4], 24, *GOOD[5:]]], "packed": []}).encode(),
    "True, 64, False] is no tile": json.dumps({"dense": [[*GOOD[:-2], 64, False]], "packed": []}).encode(),
    "[], 64, 128, 8, 3, True, 48, False] is no tile": json.dumps(
        {"dense": [[*GOOD[:4], [], *GOOD[5:]]], "packed": []}
    ).encode(),
    "32.0, 64, 128, 8, 3, True, 48, False] is no tile": json.dumps(
        {"dense": [[*GOOD[:4], 32.0, *GOOD[5:]]], "packed": []}
    ).encode(),
    "16.0, 32, 64, 128, 8, 3, True, 48, False] names no": json.dumps(
        {"dense": [[*GOOD[:3], 16.0, *GOOD[4:]]], "packed": []}
    ).encode(),
    "True, 2] is no tile": b'{"dense": [], "packed": [[64, 64, "q4-add", 2, true, 2]]}',
    "3, 2] is no tile": b'{"dense": [], "packed": [[64, 64, "q4-gated", 2, 3, 2]]}',
}


@pytest.mark.parametrize("words", list(BAD))
def test_a_damaged_file_is_ignored_with_a_warning(words: str, caplog: pytest.LogCaptureFixture) -> None:
    path = path_for(GPU)
    path.parent.mkdir()
    path.write_bytes(BAD[words])
    with pytest.raises(DamagedTiles, match=words if words.startswith(r"\]") else re.escape(words)):
        read(path)
    with caplog.at_level(logging.WARNING, tile_cache.__name__):
        assert measured_here(GPU) == Measured()
    assert f"{path} is ignored" in caplog.text
    assert "doctor --tune" in caplog.text
