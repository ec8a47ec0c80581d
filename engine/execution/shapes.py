"""Models by their sizes alone, with random weights from a seed: what the shape bench runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from engine.models.llama import LlamaConfig
from kernels.quant_types import BLOCKS, QuantType, RawTensor


class ShapeForm(StrEnum):
    """What a shape's matrices are held in."""

    BF16 = "bf16"
    Q4 = "q4"
    Q8 = "q8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


ON_CPU = {ShapeForm.BF16: QuantType.BF16, ShapeForm.Q4: QuantType.Q4_1, ShapeForm.Q8: QuantType.Q8_0}
"""The forms that the CPU backend runs, as a file would hold them."""
LEAST_CAPABILITY = {ShapeForm.FP8: (8, 9), ShapeForm.NVFP4: (8, 9)}
"""The oldest GPUs that run a form, where not every supported one does: 8-bit floats need a conversion instruction."""

SHAPES = {
    "llama-1b": LlamaConfig(
        layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, context=16384,
        rms_eps=1e-5, rope_base=5e5, rope_dims=64,
    ),
    "qwen3-8b": LlamaConfig(
        layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8, head_dim=128, vocab=151936, context=16384,
        rms_eps=1e-6, rope_base=1e6, rope_dims=128, rope_interleaved=False, qk_norm=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShapeStep:
    """One decode step of `rows` requests. `same` of the `rows` gave the logits they give alone, bit for bit."""

    rows: int
    seconds: float
    same: int


@dataclass(frozen=True, slots=True)
class ShapeRun:
    """What one form of one shape gave on one device. A step reads `read_bytes` of weights; `rate` is what a kernel that
    only reads reaches there, in bytes a second."""

    device: str
    backend: str
    layers: int
    read_bytes: int
    rate: float
    steps: tuple[ShapeStep, ...]


class ShapeTensors(Mapping[str, RawTensor]):
    """A shape's tensors by name, each without data (`data` has no bytes)."""

    def __init__(self, config: LlamaConfig) -> None:
        q, kv = config.attention.q_width, config.attention.kv_width
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (config.vocab, config.hidden),
            "output.weight": (config.vocab, config.hidden),
            "output_norm.weight": (config.hidden,),
        }
        for i in range(config.layers):
            block = {
                "attn_norm": (config.hidden,), "ffn_norm": (config.hidden,),
                "attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,),
                "attn_q": (q, config.hidden), "attn_k": (kv, config.hidden), "attn_v": (kv, config.hidden),
                "attn_output": (config.hidden, q), "ffn_gate": (config.ffn, config.hidden),
                "ffn_up": (config.ffn, config.hidden), "ffn_down": (config.hidden, config.ffn),
            }  # fmt: skip
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
        self._shapes = shapes

    def __getitem__(self, name: str) -> RawTensor:
        return RawTensor(name, QuantType.BF16, self._shapes[name], np.empty(0, np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class SeededTensors(Mapping[str, RawTensor]):
    """A shape's tensors with random values of about inputs**-0.5, made as they are taken; matrices in `form`."""

    def __init__(self, config: LlamaConfig, form: QuantType, seed: int) -> None:
        self._shapes = ShapeTensors(config)
        self._form = form
        self._seed = seed
        self._order = {name: i for i, name in enumerate(self._shapes)}

    def __getitem__(self, name: str) -> RawTensor:
        shape = self._shapes[name].shape
        random = np.random.default_rng([self._seed, self._order[name]])
        if len(shape) == 1:
            values = random.normal(1.0, 0.1, shape).astype(np.float32)
            return RawTensor(name, QuantType.F32, shape, values.view(np.uint8))
        return RawTensor(name, self._form, shape, _matrix(self._form, shape, random))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _matrix(form: QuantType, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.uint8]:
    n, k = shape
    size = float(k) ** -0.5
    if form is QuantType.BF16:
        # A sign, an exponent at or two under the size's, and any mantissa.
        top = 127 + int(np.floor(np.log2(size)))
        exponent = random.integers(top - 2, top + 1, (n, k), dtype=np.uint16)
        noise = random.integers(0, 1 << 16, (n, k), dtype=np.uint16)
        return (noise & 0x807F | exponent << 7).view(np.uint8)
    spec = BLOCKS[form]
    blocks = random.integers(0, 256, (n, k // spec.values, spec.bytes), dtype=np.uint8)
    step = np.float16(size / (64.0 if form is QuantType.Q8_0 else 4.6))
    blocks[..., :2] = np.array([step]).view(np.uint8)
    if form is QuantType.Q4_1:
        blocks[..., 2:4] = np.array([step * np.float16(-7.5)]).view(np.uint8)
    return blocks.reshape(n, -1)
