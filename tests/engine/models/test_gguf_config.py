"""A model file's metadata as a configuration: what is read, what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.gguf_config import llama_config
from engine.models.llama import LlamaConfig, RopeScaling
from engine.models.weights.gguf import DamagedModel, UnsupportedModel, open_gguf
from tests.support.gguf_files import ABSENT, Override, TinyLlama, write_tiny_llama


def configured(folder: Path, **metadata: Override) -> LlamaConfig:
    """The tiny model's configuration with metadata `llama.<name>` changed, `__` standing for a dot."""
    changed = {f"llama.{name.replace('__', '.')}": value for name, value in metadata.items()}
    file = open_gguf(write_tiny_llama(folder / "t.gguf", TinyLlama(metadata=changed)))
    return llama_config(file.metadata, file.tensors)


def test_sizes_are_the_files(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert (config.layers, config.hidden, config.ffn, config.vocab, config.context) == (2, 64, 128, 276, 256)
    assert (config.heads, config.kv_heads, config.head_dim, config.rope_dims) == (4, 2, 16, 16)
    assert (config.rms_eps, config.rope_base) == (pytest.approx(1e-5), 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.rope_interleaved


def test_defaults_where_the_file_is_silent(tmp_path: Path) -> None:
    config = configured(tmp_path, attention__head_count_kv=ABSENT, rope__freq_base=ABSENT, rope__dimension_count=ABSENT)
    assert (config.kv_heads, config.rope_base, config.rope_dims) == (4, 10000.0, 16)


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, RopeScaling()),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope__scaling__factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope__scale_linear": 2.0}, RopeScaling("linear", 2.0)),
        ({"rope__scaling__type": "linear"}, RopeScaling()),
        ({"rope__scaling__factor": 0.0}, RopeScaling()),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 8.0, "rope__scaling__original_context_length": 64},
            RopeScaling("yarn", 8.0, 64),
        ),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 8.0}, RopeScaling("yarn", 8.0, 256)),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 2.0,
                "rope__scaling__attn_factor": 0.5,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__scaling__yarn_beta_slow": 2.0,
            },
            RopeScaling("yarn", 2.0, 256, 0.5, 16.0, 2.0),
        ),
    ],
)
def test_rope_scaling_is_the_files(tmp_path: Path, metadata: dict[str, Override], scaling: RopeScaling) -> None:
    assert configured(tmp_path, **metadata).rope_scaling == scaling


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"rope__scaling__type": "longrope"}, UnsupportedModel, "'longrope' cannot be run yet; supported are none"),
        ({"rope__scaling__type": "dynamic"}, UnsupportedModel, "'dynamic' cannot be run yet; supported are none"),
        ({"rope__scaling__attn_factor": 0.5}, UnsupportedModel, "attn_factor 0.5 without yarn"),
        ({"expert_count": 8}, UnsupportedModel, "mixtures of experts cannot be run yet"),
        ({"attention__value_length": 8}, UnsupportedModel, "keys of 16 and values of 8"),
        ({"rope__dimension_count": 8}, DamagedModel, r"rope\.dimension_count is 8, expected 16"),
        ({"rope__scaling__factor": 0.5}, DamagedModel, r"factor is 0\.5, allowed is 1 or more"),
        ({"attention__head_count_kv": 3}, DamagedModel, "heads"),
        ({"attention__head_count": 0}, DamagedModel, "head_count is 0, allowed is 1 to"),
        ({"block_count": 1_000_000}, DamagedModel, "block_count is 1000000, allowed is 1 to 4096"),
        ({"block_count": ABSENT}, DamagedModel, r"llama\.block_count is missing"),
        ({"attention__layer_norm_rms_epsilon": ABSENT}, DamagedModel, "epsilon is missing"),
        ({"context_length": "long"}, DamagedModel, "context_length must be an integer, the file has str"),
    ],
)
def test_what_cannot_be_run_is_named(
    tmp_path: Path, metadata: dict[str, Override], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"t\.gguf: .*{message}"):
        configured(tmp_path, **metadata)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    file = open_gguf(write_tiny_llama(tmp_path / "t.gguf", TinyLlama(metadata={"general.architecture": "gemma"})))
    with pytest.raises(
        UnsupportedModel, match="architecture 'gemma' cannot be run yet; supported are llama, qwen2, qwen3"
    ):
        llama_config(file.metadata, file.tensors)


def test_qwen_variants(tmp_path: Path) -> None:
    found = {}
    for spec in (
        TinyLlama(arch="qwen2", metadata={"qwen2.rope.dimension_count": ABSENT}),
        TinyLlama(arch="qwen3", head_dim=24),
    ):
        file = open_gguf(write_tiny_llama(tmp_path / f"{spec.arch}.gguf", spec))
        found[spec.arch] = llama_config(file.metadata, file.tensors)
    assert {a: (c.rope_interleaved, c.qkv_bias, c.qk_norm) for a, c in found.items()} == {
        "qwen2": (False, True, False),
        "qwen3": (False, False, True),
    }
    assert {a: (c.head_dim, c.rope_dims) for a, c in found.items()} == {"qwen2": (16, 16), "qwen3": (24, 24)}
