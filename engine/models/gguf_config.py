"""An architecture's sizes and variants from a GGUF file's metadata, refused by name where a variant cannot be run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from engine.models.llama import LlamaConfig, RopeScaling, tensors_read
from engine.models.weights.gguf import DamagedModel, GgufFile, Metadata, UnsupportedModel
from kernels.program import vector
from kernels.quant_types import RawTensor


@dataclass(frozen=True, slots=True)
class Variant:
    """What an architecture does its own way; fields as in `LlamaConfig`."""

    rope_interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False


ARCHITECTURES: Mapping[str, Variant] = MappingProxyType({
    "llama": Variant(rope_interleaved=True),
    "qwen2": Variant(qkv_bias=True),
    "qwen3": Variant(qk_norm=True),
})  # fmt: skip
ROPE_SCALINGS = ("none", "linear", "yarn")


UNUSED_TENSORS = (
    # Inverse rotary frequencies that early converters stored beside the metadata that give them.
    r"blk\.\d+\.attn_rot_embd\.weight",
    r"blk\.\d+\.attn\.rotary_emb\.inv_freq",
)
"""Tensors (as patterns of their whole names) that a file may hold and no forward needs. Any other that a forward does
not read is refused, since the answers would be wrong without a word."""

SHOWN_NAMES = 4


def checked_config(file: GgufFile) -> LlamaConfig:
    """The configuration of a file whose every tensor is read or known to be unneeded, has the shape that is expected,
    and holds finite numbers where it is a vector. Raises as `llama_config` does, and OSError."""
    config = llama_config(file.metadata, file.tensors)
    try:
        read = tensors_read(config, file.tensors)
        unneeded = re.compile("|".join(UNUSED_TENSORS))
        remaining_prompt = [name for name in file.tensors if name not in read and not unneeded.fullmatch(name)]
        if remaining_prompt:
            raise UnsupportedModel(
                f"{file.path}: {_shown(remaining_prompt)} cannot be applied yet in a model of architecture "
                f"{file.metadata.text('general.architecture')}"
            )
        for name in file.tensors:
            if name in read and len(file.tensors[name].shape) == 1:
                bad = int(np.count_nonzero(~np.isfinite(vector(file.tensors[name]))))
                if bad:
                    raise DamagedModel(f"{file.path}: {name} holds {bad} values that are NaN or infinite")
    except (DamagedModel, UnsupportedModel):
        raise
    except ValueError as error:
        raise DamagedModel(f"{file.path}: {error}") from error
    return config


def _shown(names: Sequence[str]) -> str:
    """A few of a file's names, as a terminal may be shown them."""
    shown = ["".join(c if c.isprintable() else "\ufffd" for c in name[:80]) for name in names[:SHOWN_NAMES]]
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {', '.join(shown)}{more}"


def llama_config(metadata: Metadata, tensors: Mapping[str, RawTensor]) -> LlamaConfig:
    """The configuration of a file whose architecture is one of `ARCHITECTURES`.

    Keys and defaults are those of llama.cpp's `llama-model.cpp`. Llama 3's stretched rotary embedding comes as the
    tensor `rope_freqs.weight`, which the model reads itself. Raises UnsupportedModel for an architecture, a rope
    scaling or a variant that cannot be run, DamagedModel for values that contradict each other.
    """
    arch = metadata.text("general.architecture")
    variant = ARCHITECTURES.get(arch)
    if variant is None:
        raise UnsupportedModel(
            f"{metadata.path}: architecture {arch!r} cannot be run yet; supported are {', '.join(ARCHITECTURES)}"
        )
    if metadata.integer(f"{arch}.expert_count", 0):
        raise UnsupportedModel(f"{metadata.path}: mixtures of experts cannot be run yet ({arch}.expert_count)")
    embeddings = tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise DamagedModel(f"{metadata.path}: tensor token_embd.weight is missing or no matrix")
    hidden = metadata.integer(f"{arch}.embedding_length", low=1)
    heads = metadata.integer(f"{arch}.attention.head_count", low=1)
    head_dim = metadata.integer(f"{arch}.attention.key_length", hidden // heads, low=1)
    value_dim = metadata.integer(f"{arch}.attention.value_length", hidden // heads, low=1)
    rope_dims = metadata.integer(f"{arch}.rope.dimension_count", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{metadata.path}: keys of {head_dim} and values of {value_dim} cannot be run yet")
    if rope_dims != head_dim:
        raise DamagedModel(f"{metadata.path}: {arch}.rope.dimension_count is {rope_dims}, expected {head_dim}")
    context = metadata.integer(f"{arch}.context_length", low=1)
    try:
        return LlamaConfig(
            layers=metadata.integer(f"{arch}.block_count", low=1, high=4096),
            hidden=hidden,
            ffn=metadata.integer(f"{arch}.feed_forward_length", low=1),
            heads=heads,
            kv_heads=metadata.integer(f"{arch}.attention.head_count_kv", heads, low=1),
            head_dim=head_dim,
            vocab=embeddings.shape[0],
            context=context,
            rms_eps=metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope_base=metadata.number(f"{arch}.rope.freq_base", 10000.0),
            rope_dims=rope_dims,
            rope_scaling=_rope_scaling(metadata, arch, context),
            rope_interleaved=variant.rope_interleaved,
            qkv_bias=variant.qkv_bias,
            qk_norm=variant.qk_norm,
        )
    except (DamagedModel, UnsupportedModel):
        raise
    except ValueError as error:
        raise DamagedModel(f"{metadata.path}: {error}") from error


def _rope_scaling(metadata: Metadata, arch: str, context: int) -> RopeScaling:
    """`rope.scaling.*`; `rope.scale_linear` is the older name of a linear factor. A factor of 0 means none."""
    key = f"{arch}.rope.scaling"
    kind = metadata.text(f"{key}.type", "linear")
    if kind not in ROPE_SCALINGS:
        raise UnsupportedModel(
            f"{metadata.path}: {key}.type {kind!r} cannot be run yet; supported are {', '.join(ROPE_SCALINGS)}, and "
            "Llama 3's factors as the tensor rope_freqs.weight"
        )
    factor = metadata.number(f"{key}.factor", metadata.number(f"{arch}.rope.scale_linear", 0.0)) or 1.0
    if factor < 1.0:
        raise DamagedModel(f"{metadata.path}: {key}.factor is {factor}, allowed is 1 or more (0 for none)")
    attention_factor = metadata.number(f"{key}.attn_factor", 1.0)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_length=metadata.integer(f"{key}.original_context_length", context, low=1),
            attention_factor=attention_factor,
            beta_fast=metadata.number(f"{key}.yarn_beta_fast", 32.0),
            beta_slow=metadata.number(f"{key}.yarn_beta_slow", 1.0),
        )
    if attention_factor != 1.0:
        raise UnsupportedModel(f"{metadata.path}: {key}.attn_factor {attention_factor} without yarn cannot be run yet")
    return RopeScaling(kind="linear", factor=factor) if kind == "linear" and factor != 1.0 else RopeScaling()
