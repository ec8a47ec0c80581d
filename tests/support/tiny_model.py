"""A tiny random Llama-like model as raw tensors, and KV memory for it, for tests of kernels and runners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.memory.kv.layout import KvLayout
from engine.models.llama import LlamaConfig
from kernels.quant_types import BLOCKS, QuantType, RawTensor

TINY = LlamaConfig(
    layers=2,
    hidden=64,
    ffn=96,
    heads=6,
    kv_heads=2,
    head_dim=16,
    vocab=90,
    context=512,
    rms_eps=1e-5,
    rope_base=10000.0,
    rope_dims=16,
)
QWEN_LIKE = replace(TINY, rope_interleaved=False, qkv_bias=True, qk_norm=True, rope_dims=8)


def raw(
    name: str, form: QuantType, shape: tuple[int, ...], random: np.random.Generator, scale: float = 0.1
) -> RawTensor:
    """A random tensor whose values are about `scale` in size."""
    spec = BLOCKS[form]
    rows = shape[0] if len(shape) == 2 else 1
    values = random.standard_normal((rows, shape[-1])).astype(np.float32) * np.float32(scale)
    if form is QuantType.F32:
        data = values.view(np.uint8)
    elif form is QuantType.F16:
        data = values.astype(np.float16).view(np.uint8)
    elif form is QuantType.BF16:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        blocks = random.integers(0, 256, (rows, shape[1] // spec.values, spec.bytes), dtype=np.uint8)
        size = random.uniform(0.5, 1.5, blocks.shape[:2]) * scale
        if form in (QuantType.Q4_K, QuantType.Q5_K):
            # Codes around their middle, times scales and minima of 6 bits.
            half = 8 if form is QuantType.Q4_K else 16
            _write_half(blocks, 0, size / (16 * half))
            _write_half(blocks, 2, size / 16)
        elif form is QuantType.Q6_K:
            _write_half(blocks, 208, size / 1024)
        else:
            _write_half(blocks, 0, size / (64 if form is QuantType.Q8_0 else 4))
        if form is QuantType.Q4_1:
            _write_half(blocks, 2, random.uniform(-2.5, -1.5, blocks.shape[:2]) * scale)
        data = blocks.reshape(rows, -1)
    return RawTensor(name, form, shape, data.reshape(rows, -1) if len(shape) == 2 else data.reshape(-1))


def tiny_tensors(config: LlamaConfig, form: QuantType, head_form: QuantType, seed: int = 0) -> dict[str, RawTensor]:
    """All tensors of a model; every matrix in `form` but the token embedding (and tied head) in `head_form`."""
    random = np.random.default_rng(seed)
    made: dict[str, RawTensor] = {}

    def add(name: str, kind: QuantType, *shape: int, scale: float = 0.1) -> None:
        made[name] = raw(name, kind, shape, random, scale)

    def add_norm(name: str, width: int) -> None:
        values = random.uniform(0.5, 1.5, width).astype(np.float32)
        made[name] = RawTensor(name, QuantType.F32, (width,), values.view(np.uint8))

    heads = config.attention
    add("token_embd.weight", head_form, config.vocab, config.hidden, scale=1.0)
    add_norm("output_norm.weight", config.hidden)
    for layer in range(config.layers):
        at = f"blk.{layer}"
        add_norm(f"{at}.attn_norm.weight", config.hidden)
        add_norm(f"{at}.ffn_norm.weight", config.hidden)
        for part, width in (("q", heads.q_width), ("k", heads.kv_width), ("v", heads.kv_width)):
            add(f"{at}.attn_{part}.weight", form, width, config.hidden, scale=0.3)
            if config.qkv_bias:
                add(f"{at}.attn_{part}.bias", QuantType.F32, width)
        if config.qk_norm:
            add_norm(f"{at}.attn_q_norm.weight", config.head_dim)
            add_norm(f"{at}.attn_k_norm.weight", config.head_dim)
        add(f"{at}.attn_output.weight", form, config.hidden, heads.q_width)
        add(f"{at}.ffn_gate.weight", form, config.ffn, config.hidden)
        add(f"{at}.ffn_up.weight", form, config.ffn, config.hidden)
        add(f"{at}.ffn_down.weight", form, config.hidden, config.ffn)
    return made


def fitting(config: LlamaConfig, form: QuantType) -> LlamaConfig:
    """`config`, widened where the form's blocks need it."""
    return replace(config, hidden=256, ffn=512, heads=16) if BLOCKS[form].values > 32 else config


class PlainKv:
    """Implements `engine.execution.runner.KvAddresses` over arrays of NaN, which show a row read before it is
    written."""

    def __init__(self, layout: KvLayout, slots: int, window: int) -> None:
        self.arrays = [
            [np.full((window, t.row_bytes // 2), np.nan, np.float16) for t in layout.tensors] for _ in range(slots)
        ]
        self._window = window

    def base(self, slot: int, tensor: int) -> int:
        return int(self.arrays[slot][tensor].ctypes.data)

    def window(self, slot: int) -> int:
        return self._window

    def addresses(self) -> NDArray[np.uint64]:
        return np.array([[a.ctypes.data for a in slot] for slot in self.arrays], np.uint64)


def _write_half(blocks: NDArray[np.uint8], at: int, values: NDArray[np.float64]) -> None:
    blocks[..., at : at + 2] = values.astype(np.float16)[..., None].view(np.uint8)
