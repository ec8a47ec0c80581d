"""The Llama architecture, and its close kin: one forward, described once for every backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.memory.kv.layout import KvLayout, KvTensor
from kernels.program import Heads, Linear, Norm, Ops, Rotary, V, vector
from kernels.quant_types import RawTensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a longer window stretches the rotary embedding. `kind`: `none`, `linear` or `yarn`.

    `factor` is the stretch, `original_length` the window that the model was first trained on (yarn),
    `attention_factor` multiplies yarn's own magnitude correction.
    """

    kind: str = "none"
    factor: float = 1.0
    original_length: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and variants of a Llama-like model.

    `rope_interleaved` turns pairs (2i, 2i + 1) as Llama files in GGUF are permuted for; False is the split-half form
    (Qwen). `qkv_bias` reads `attn_{q,k,v}.bias` (Qwen2), `qk_norm` reads `attn_{q,k}_norm.weight` (Qwen3).
    `rope_dims` is the number of dimensions of a head that turn.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rms_eps: float
    rope_base: float
    rope_dims: int
    rope_scaling: RopeScaling = RopeScaling()
    rope_interleaved: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context", "rope_dims"):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field} is {value}; at least 1 is needed")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is no multiple of kv_heads ({self.kv_heads})")
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ValueError(
                f"rope_dims is {self.rope_dims}; an even number up to head_dim ({self.head_dim}) is needed"
            )

    @property
    def attention(self) -> Heads:
        return Heads(self.heads, self.kv_heads, self.head_dim)


def kv_layout(config: LlamaConfig) -> KvLayout:
    """How a runner keeps a slot's KV: two bytes an element."""
    row_bytes = config.attention.kv_width * 2
    return KvLayout(
        tuple(KvTensor("engine", layer, part, row_bytes) for layer in range(config.layers) for part in ("k", "v"))
    )


def rotary(config: LlamaConfig, factors: RawTensor | None) -> Rotary:
    """The rotary frequencies of a model. `factors` divides each pair's frequency (Llama 3's `rope_freqs.weight`).

    Linear: frequencies / factor. Yarn (Peng et al., arXiv 2309.00071): a ramp over pairs between the interpolated and
    the original frequency, magnitude (1 + 0.1 ln factor) * attention_factor. Raises ValueError for another kind.
    """
    scaling = config.rope_scaling
    pairs = config.rope_dims // 2
    original = config.rope_base ** (-2.0 * np.arange(pairs) / config.rope_dims)
    if factors is not None:
        divisors = vector(factors).astype(np.float64)
        if divisors.shape != (pairs,):
            raise ValueError(f"{factors.name}: {divisors.shape[0]} factors for {pairs} pairs")
        original = original / divisors
    magnitude = 1.0
    if scaling.kind == "none":
        frequencies = original
    elif scaling.kind == "linear":
        frequencies = original / scaling.factor
    elif scaling.kind == "yarn":
        if scaling.original_length < 1:
            raise ValueError("rope_scaling.original_length is missing; yarn needs it")

        def pair_of(turns: float) -> float:
            """The pair that turns `turns` times over the original window."""
            length = scaling.original_length / (turns * 2.0 * math.pi)
            return config.rope_dims * math.log(length) / (2.0 * math.log(config.rope_base))

        low = max(0.0, math.floor(pair_of(scaling.beta_fast)))
        high = min(config.rope_dims - 1.0, math.ceil(pair_of(scaling.beta_slow)))
        ramp = 1.0 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0.0, 1.0)
        frequencies = original / scaling.factor * (1.0 - ramp) + original * ramp
        magnitude = (1.0 + 0.1 * math.log(scaling.factor)) * scaling.attention_factor
    else:
        raise ValueError(f"rope_scaling.kind is {scaling.kind!r}; none, linear and yarn are supported")
    return Rotary(tuple(float(f) for f in frequencies), magnitude, config.rope_interleaved)


class TensorSource:
    """A file's tensors by name, with their shapes checked as they are taken."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = tensors

    def get(self, name: str) -> RawTensor | None:
        return self._tensors.get(name)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> RawTensor:
        """The tensor; raises ValueError where it is missing or of another shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ValueError(f"{name}: the model file has no such tensor")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)} where {shape} is expected")
        return tensor


class _ReadNames(Mapping[str, RawTensor]):
    """Tensors that note which of them were asked for."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = tensors
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> RawTensor:
        tensor = self._tensors[name]
        self.names.add(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _NoOps:
    """Implements `kernels.program.Ops` by doing nothing: for what a forward would read."""

    def embed(self, table: RawTensor) -> None: ...

    def project(self, x: None, norm: Norm, parts: Sequence[Linear]) -> None: ...

    def rotate_store(
        self, qkv: None, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> None: ...

    def attend(self, q: None, heads: Heads, layer: int) -> None: ...

    def add_linear(self, residual: None, x: None, linear: Linear) -> None: ...

    def project_gated(self, x: None, norm: Norm, gate: Linear, up: Linear) -> None: ...

    def head(self, x: None, norm: Norm, linear: Linear) -> None: ...


def tensors_read(config: LlamaConfig, tensors: Mapping[str, RawTensor]) -> set[str]:
    """The names of the tensors that a forward of the model reads. Raises ValueError as `record` does."""
    noted = _ReadNames(tensors)
    record(_NoOps(), config, noted)
    return noted.names


def record(ops: Ops[V], config: LlamaConfig, tensors: Mapping[str, RawTensor]) -> None:
    """Record one forward of the model. Raises ValueError naming a tensor that is missing or misshapen."""
    source = TensorSource(tensors)
    heads = config.attention
    turn = rotary(config, source.get("rope_freqs.weight"))

    def norm(name: str, width: int) -> Norm:
        return Norm(source.take(f"{name}.weight", width), config.rms_eps)

    def linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Linear:
        weight = source.take(f"{name}.weight", outputs, inputs)
        return Linear(weight, source.take(f"{name}.bias", outputs) if bias else None)

    x = ops.embed(source.take("token_embd.weight", config.vocab, config.hidden))
    for layer in range(config.layers):
        at = f"blk.{layer}"
        # A Llama may have them too. Where one of the three is missing, the others are not read.
        biased = config.qkv_bias or all(source.has(f"{at}.attn_{part}.bias") for part in "qkv")
        qkv = ops.project(
            x,
            norm(f"{at}.attn_norm", config.hidden),
            [
                linear(f"{at}.attn_q", heads.q_width, config.hidden, biased),
                linear(f"{at}.attn_k", heads.kv_width, config.hidden, biased),
                linear(f"{at}.attn_v", heads.kv_width, config.hidden, biased),
            ],
        )
        q_norm = norm(f"{at}.attn_q_norm", config.head_dim) if config.qk_norm else None
        k_norm = norm(f"{at}.attn_k_norm", config.head_dim) if config.qk_norm else None
        q = ops.rotate_store(qkv, heads, turn, layer, q_norm=q_norm, k_norm=k_norm)
        seen = ops.attend(q, heads, layer)
        x = ops.add_linear(x, seen, linear(f"{at}.attn_output", config.hidden, heads.q_width))
        inner = ops.project_gated(
            x,
            norm(f"{at}.ffn_norm", config.hidden),
            linear(f"{at}.ffn_gate", config.ffn, config.hidden),
            linear(f"{at}.ffn_up", config.ffn, config.hidden),
        )
        x = ops.add_linear(x, inner, linear(f"{at}.ffn_down", config.hidden, config.ffn))
    head = "output" if source.get("output.weight") is not None else "token_embd"
    ops.head(x, norm("output_norm", config.hidden), linear(head, config.vocab, config.hidden))
