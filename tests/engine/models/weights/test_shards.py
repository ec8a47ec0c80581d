"""One shard of a split model: named as such, with those that are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest

from engine.models.weights.gguf import DamagedModel, UnsupportedModel, open_gguf, read_header
from engine.models.weights.shards import shard_sentence
from tests.support.gguf_files import TinyLlama, write_tiny_llama

FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
JOIN = r"split files cannot be loaded yet: join them with `llama-gguf-split --merge FIRST-SHARD WHOLE-FILE`"


def first_shard(path: Path) -> Path:
    return write_tiny_llama(path, TinyLlama(metadata={"split.no": 0, "split.count": 2, "split.tensors.count": 20}))


def later_shard(path: Path) -> Path:
    """As `llama-gguf-split` writes it: no metadata but its own number."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].pop("general.architecture")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_first_shard_names_the_second(tmp_path: Path) -> None:
    path = first_shard(tmp_path / FIRST)
    with pytest.raises(
        UnsupportedModel, match=rf"{FIRST}: this is shard 1 of 2 of a split model; {SECOND} missing in "
    ):
        open_gguf(path)
    later_shard(tmp_path / SECOND)
    with pytest.raises(UnsupportedModel, match=rf"of 2 of a split model; all 2 lie beside each other, but {JOIN}"):
        open_gguf(path)


def test_a_later_shard_names_the_first(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=rf"this is shard 2 of 2 of a split model; {FIRST} missing in .*{JOIN}"):
        open_gguf(later_shard(tmp_path / SECOND))


def test_a_renamed_shard_is_one_still(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"shard 1 of 2 of a split model; its name does not say where"):
        open_gguf(first_shard(tmp_path / "renamed.gguf"))


def test_a_file_that_was_cut_by_bytes_is_named_by_its_name(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / FIRST).write_bytes(whole[:20_000])
    (tmp_path / SECOND).write_bytes(whole[20_000:])
    for name in (FIRST, SECOND):
        with pytest.raises(
            DamagedModel, match=rf"{name}: .*; by its name, this is shard [12] of 2 of a split model; all"
        ):
            read_header(tmp_path / name)


def test_a_whole_model_is_no_shard(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m-00001-of-00001.gguf")
    assert open_gguf(path).tensors
    joined = write_tiny_llama(tmp_path / FIRST, TinyLlama(metadata={"split.count": 1}))
    assert open_gguf(joined).tensors
    shutil.copy(path, tmp_path / "plain.gguf")
    assert shard_sentence(tmp_path / "plain.gguf", {}) is None


def test_missing_shards_are_counted(tmp_path: Path) -> None:
    sentence = shard_sentence(tmp_path / "m-00002-of-00009.gguf", {"split.count": 9, "split.no": 1})
    assert sentence is not None
    assert "shard 2 of 9" in sentence
    assert "m-00001-of-00009.gguf, m-00003-of-00009.gguf, m-00004-of-00009.gguf and 5 more missing in" in sentence
