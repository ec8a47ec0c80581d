"""Every tensor of a file is applied or refused by name, and small ones hold numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.core.loading import load
from engine.execution.rows import SlotRows, pack
from engine.models.gguf_config import checked_config
from engine.models.weights.gguf import DamagedModel, UnsupportedModel, open_gguf
from tests.support.gguf_files import TinyLlama, write_tiny_llama
from tests.support.tiny_model import PlainKv

Array = NDArray[np.float32]


def filled(size: int, value: float = 9.0) -> Array:
    return np.full(size, value, np.float32)


def written(folder: Path, arch: str = "llama", **tensors: Array) -> Path:
    """The tiny model with tensors added or replaced, `__` standing for a dot."""
    named = {name.replace("__", "."): data for name, data in tensors.items()}
    return write_tiny_llama(folder / "t.gguf", TinyLlama(arch=arch, tensors=named))


def logits(path: Path) -> Array:
    model = load(EngineConfig(model=path, model_name="tiny", threads=1, device="cpu"), lambda _: None)
    kv = PlainKv(model.runner.layout, 1, 16)
    model.runner.attach(kv, 1)
    return model.runner.forward(pack([SlotRows(0, 0, range(20, 28), logits=range(8))])).copy()


def test_biases_of_a_llamas_projections_are_applied(tmp_path: Path) -> None:
    def biased(value: float) -> Array:
        biases = {"blk__0__attn_q__bias": filled(64, value), "blk__0__attn_k__bias": filled(32, value)}
        return logits(written(tmp_path, **biases, blk__0__attn_v__bias=filled(32, value)))

    plain = logits(written(tmp_path))
    assert np.array_equal(biased(0.0), plain)
    assert not np.allclose(biased(9.0), plain)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_output.bias",
        "blk.1.ffn_down.bias",
        "output_norm.bias",
        "blk.0.post_attention_norm.weight",
        "blk.0.attn_q.scale",
        "blk.2.attn_norm.weight",
        "rope_factors_long.weight",
        "output.bias",
        "something\x1bforeign",
    ],
)
def test_a_tensor_that_nothing_reads_is_refused_by_name(name: str, arch: str, tmp_path: Path) -> None:
    path = written(tmp_path, arch, **{name.replace(".", "__"): filled(64)})
    shown = name.replace("\x1b", "\ufffd")
    expected = rf"t\.gguf: tensor {shown} cannot be applied yet in a model of architecture {arch}"
    with pytest.raises(UnsupportedModel, match=expected):
        load(EngineConfig(model=path, model_name="tiny", threads=1, device="cpu"), lambda _: None)


def test_a_bias_of_one_projection_alone_is_refused_by_name(tmp_path: Path) -> None:
    file = open_gguf(written(tmp_path, blk__0__attn_q__bias=filled(64)))
    with pytest.raises(UnsupportedModel, match=r"tensor blk\.0\.attn_q\.bias cannot be applied yet"):
        checked_config(file)


def test_many_names_are_counted(tmp_path: Path) -> None:
    file = open_gguf(written(tmp_path, **{f"blk__0__extra_{i}__weight": filled(64) for i in range(7)}))
    with pytest.raises(UnsupportedModel, match=r"tensors blk\.0\.extra_0\.weight, .*extra_3\.weight and 3 more cannot"):
        checked_config(file)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_rot_embd.weight"])
def test_tensors_that_are_read_elsewhere_or_unneeded_are_no_obstacle(name: str, tmp_path: Path) -> None:
    file = open_gguf(written(tmp_path, **{name.replace(".", "__"): filled(8, 1.0)}))
    assert checked_config(file).layers == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "size", "arch"),
    [
        ("blk.1.ffn_norm.weight", 64, "llama"),
        ("output_norm.weight", 64, "llama"),
        ("rope_freqs.weight", 8, "llama"),
        ("blk.0.attn_v.bias", 32, "qwen2"),
        ("blk.1.attn_k_norm.weight", 16, "qwen3"),
    ],
)
def test_vectors_hold_finite_numbers(name: str, size: int, arch: str, value: float, tmp_path: Path) -> None:
    data = filled(size, 1.0)
    data[[1, -1]] = value
    file = open_gguf(written(tmp_path, arch, **{name.replace(".", "__"): data}))
    with pytest.raises(DamagedModel, match=rf"t\.gguf: {name} holds 2 values that are NaN or infinite"):
        checked_config(file)
