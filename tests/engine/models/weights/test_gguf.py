"""The GGUF reader: what it maps, and how it refuses what is damaged."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.models.weights import gguf as gguf_module
from engine.models.weights.gguf import DamagedModel, UnsupportedModel, open_gguf, read_header
from kernels.quant_types import BLOCKS, QuantType
from tests.support.gguf_files import TinyLlama, vocabulary, write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_metadata_is_what_was_written(tiny: Path) -> None:
    metadata = open_gguf(tiny).metadata
    tokens, types, merges = vocabulary()
    assert metadata.text("general.architecture") == "llama"
    assert metadata.integer("llama.block_count") == 2
    assert metadata.number("llama.rope.freq_base") == 10000.0
    assert metadata.flag("tokenizer.ggml.add_bos_token") is False
    assert metadata.texts("tokenizer.ggml.tokens") == tuple(tokens)
    assert metadata.texts("tokenizer.ggml.merges") == tuple(merges)
    assert metadata.array("tokenizer.ggml.token_type").tolist() == types


@pytest.mark.parametrize("form", list(QuantType))
def test_tensors_hold_the_blocks_of_every_form(form: QuantType, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[form.name]
    path = write_tiny_llama(tmp_path / "t.gguf", TinyLlama(form=kind, head_form=kind, width=256, hidden=512))
    ours = open_gguf(path).tensors
    for theirs in gguf.GGUFReader(path).tensors:
        tensor = ours[theirs.name]
        if len(tensor.shape) == 2:
            assert tensor.quant_type == form
        values = BLOCKS[tensor.quant_type].values
        assert tensor.data.shape == (*tensor.shape[:-1], tensor.shape[-1] // values * BLOCKS[tensor.quant_type].bytes)
        expected = dequantize(theirs.data, theirs.tensor_type)
        got = dequantize(tensor.data, GGMLQuantizationType[tensor.quant_type.name])
        assert np.array_equal(got.reshape(tensor.shape), expected)


@pytest.mark.parametrize("first_read", [8, 4096])
def test_a_header_of_any_length_is_read(first_read: int, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_header(tiny)
    monkeypatch.setattr("engine.models.weights.gguf.HEADER_READ", first_read)
    again = read_header(tiny)
    assert again.infos == whole.infos
    assert list(again.metadata) == list(whole.metadata)
    assert again.metadata.texts("tokenizer.ggml.tokens") == whole.metadata.texts("tokenizer.ggml.tokens")


def test_a_header_over_the_limit_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.weights.gguf.HEADER_READ", 64)
    monkeypatch.setattr("engine.models.weights.gguf.MAX_HEADER", 1024)
    with pytest.raises(DamagedModel, match="the header is longer than 1024 bytes"):
        read_header(tiny)


def test_getters_refuse_other_types_by_key(tiny: Path) -> None:
    metadata = open_gguf(tiny).metadata
    with pytest.raises(DamagedModel, match=r"tiny\.gguf: general\.name must be an integer, the file has str"):
        metadata.integer("general.name")
    with pytest.raises(DamagedModel, match=r"llama\.nothing is missing"):
        metadata.text("llama.nothing")
    with pytest.raises(DamagedModel, match="block_count is 2, allowed is 3 to 9"):
        metadata.integer("llama.block_count", low=3, high=9)
    assert metadata.integer("llama.nothing", 7) == 7


def test_a_form_that_cannot_run_is_listed_but_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 84), np.uint8), raw_dtype=GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = read_header(path).infos["blk.0.attn_q.weight"]
    assert (info.form.name, info.shape, info.bytes) == ("q2_k", (4, 256), 336)
    with pytest.raises(
        UnsupportedModel, match=r"Q2_K cannot be run yet; supported are F32, F16, BF16, Q4_0, Q4_1, Q8_0"
    ):
        open_gguf(path)


def test_every_cut_is_refused(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    data_end = max(i.offset + i.bytes for i in read_header(tiny).infos.values())
    lengths = {*range(200), *range(200, data_end, 997), data_end - 1}
    for length in sorted(lengths):
        cut.write_bytes(whole[:length])
        with pytest.raises(DamagedModel, match=r"cut\.gguf: "):
            open_gguf(cut)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def file_of(pairs: bytes, n_pairs: int, tensors: bytes = b"", n_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + pairs + tensors


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    shape = b"".join(struct.pack("<Q", d) for d in dims)
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)) + shape + struct.pack("<IQ", kind, offset)


HUGE = 1 << 62
PAD = bytes(256)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "starts with b''"),
    "magic": (b"PK\x03\x04" + bytes(64), r"not a GGUF file: it starts with b'PK"),
    "version": (file_of(b"", 0, version=7), "version is 7, supported are 2 and 3"),
    "big endian": (file_of(b"", 0, version=3 << 24), "version is 50331648"),
    "tensor count": (file_of(b"", 0, n_tensors=HUGE) + PAD, f"tensor count is {HUGE}, the limit is 65536"),
    "tensors past the end": (file_of(b"", 0, n_tensors=60_000) + PAD, "tensor count 60000 needs 1440000 bytes"),
    "pair count": (file_of(b"", HUGE) + PAD, f"metadata count is {HUGE}, the limit is 65536"),
    "pairs past the end": (file_of(b"", 60_000) + PAD, "metadata count 60000 needs 780000 bytes"),
    "key length": (file_of(struct.pack("<Q", HUGE), 1) + PAD, f"metadata key is {HUGE} bytes long, the limit is"),
    "key past the end": (file_of(struct.pack("<Q", 5000), 1) + PAD, "metadata key needs 5000 bytes"),
    "value type": (file_of(pair(b"a.b", 77, PAD), 1), r"a\.b has type 77"),
    "string length": (file_of(pair(b"a.b", 8, struct.pack("<Q", HUGE)), 1) + PAD, rf"a\.b is {HUGE} bytes long"),
    "key not UTF-8": (file_of(pair(b"a\xff", 7, b"\1"), 1) + PAD, "metadata key is not UTF-8"),
    "value not UTF-8": (file_of(pair(b"a.b", 8, struct.pack("<Q", 2) + b"\xc3("), 1) + PAD, r"a\.b is not UTF-8"),
    "array length": (file_of(pair(b"a.b", 9, struct.pack("<IQ", 5, HUGE)), 1) + PAD, f"{HUGE} elements needs"),
    "array of strings": (file_of(pair(b"a.b", 9, struct.pack("<IQ", 8, HUGE)), 1) + PAD, f"{HUGE} strings, the limit"),
    "strings past the end": (
        file_of(pair(b"a.b", 9, struct.pack("<IQQ", 8, 3, 1) + b"x" + struct.pack("<Q", HUGE)), 1) + PAD,
        r"string 1 of 3 of a\.b reaches past the end",
    ),
    "string of array not UTF-8": (
        file_of(pair(b"a.b", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff"), 1) + PAD,
        r"string 0 of a\.b is not UTF-8",
    ),
    "array of arrays": (file_of(pair(b"a.b", 9, struct.pack("<IQ", 9, 1)), 1) + PAD, "array of type 9"),
    "key twice": (file_of(pair(b"a", 7, b"\1") * 2, 2) + PAD, "'a' appears twice"),
    "alignment": (
        file_of(pair(b"general.alignment", 4, struct.pack("<I", 24)), 1) + PAD,
        "alignment is 24, allowed is a power",
    ),
    "dimensions": (file_of(b"", 0, tensor(b"w", (1,) * 9, 0, 0), 1) + PAD, "'w' has 9 dimensions, allowed is 1 to 4"),
    "empty shape": (file_of(b"", 0, tensor(b"w", (32, 0), 0, 0), 1) + PAD, r"'w' has an empty shape \[32, 0\]"),
    "huge shape": (file_of(b"", 0, tensor(b"w", (HUGE, HUGE), 0, 0), 1) + PAD, "'w' ends at byte"),
    "row length": (
        file_of(b"", 0, tensor(b"w", (33, 2), 3, 0), 1) + PAD,
        "rows of 33 values, q4_1 needs a multiple of 32",
    ),
    "form number": (file_of(b"", 0, tensor(b"w", (32, 2), 1000, 0), 1) + PAD, "'w' has form number 1000"),
    "offset past the end": (file_of(b"", 0, tensor(b"w", (32, 2), 0, 4096), 1) + PAD, "'w' ends at byte 4"),
    "offset between": (
        file_of(b"", 0, tensor(b"w", (1,), 0, 4), 1) + PAD,
        "'w' starts at 4, allowed are multiples of 32",
    ),
    "tensor twice": (file_of(b"", 0, tensor(b"w", (1,), 0, 0) * 2, 2) + PAD, "tensor 'w' appears twice"),
}


@pytest.mark.parametrize(
    "value",
    [struct.pack("<IQ", 0, 300) + bytes(300), struct.pack("<IQQ", 8, 1, 300) + bytes(300)],
    ids=["numbers", "strings"],
)
def test_a_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    monkeypatch.setattr(gguf_module, "HEADER_READ", 100)
    monkeypatch.setattr(gguf_module, "MAX_HEADER", 200)
    path = tmp_path / "long.gguf"
    path.write_bytes(file_of(pair(b"a.b", 9, value), 1) + PAD)
    with pytest.raises(DamagedModel, match=r"the header is longer than 200 bytes"):
        open_gguf(path)


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    content, message = DAMAGED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedModel, match=message):
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 6000), value=st.integers(0, 255))
def test_any_changed_byte_opens_or_is_refused(tiny: Path, tmp_path: Path, at: int, value: int) -> None:
    content = bytearray(tiny.read_bytes())
    content[at] = value
    path = tmp_path / "changed.gguf"
    path.write_bytes(bytes(content))
    try:
        file = open_gguf(path)
    except (DamagedModel, UnsupportedModel):
        return
    assert all(t.data.nbytes for t in file.tensors.values())
