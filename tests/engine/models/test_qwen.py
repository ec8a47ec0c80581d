"""Qwen2 and dense Qwen3 from a file to logits, against the architectures written down in plain torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import SlotRows, pack
from engine.models.gguf_config import llama_config
from engine.models.weights.gguf import open_gguf
from kernels.dequantise import dequantise
from kernels.quant_types import RawTensor
from tests.kernels.backends import each_backend, named
from tests.support.gguf_files import TinyLlama, write_tiny_llama
from tests.support.tiny_model import PlainKv

F32 = GGMLQuantizationType.F32
MODELS = {
    "qwen2, tied head": TinyLlama(arch="qwen2", form=F32, head_form=F32),
    "qwen2, own head": TinyLlama(arch="qwen2", form=F32, head_form=F32, own_head=True),
    "qwen3, tied head": TinyLlama(arch="qwen3", form=F32, head_form=F32, head_dim=24),
    "qwen3, own head": TinyLlama(arch="qwen3", form=F32, head_form=F32, head_dim=24, own_head=True),
}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def turned(x: torch.Tensor) -> torch.Tensor:
    """x (heads, tokens, head_dim) turned at its token's place, dimension i with i + head_dim / 2."""
    half = x.shape[-1] // 2
    pace = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * torch.cat([pace, pace])
    swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * angle.cos() + swapped * angle.sin()


def logits(spec: TinyLlama, tensors: dict[str, RawTensor], tokens: list[int]) -> torch.Tensor:
    """The logits after every token, in float64."""
    w = {name: torch.from_numpy(dequantise(t).astype(np.float64)) for name, t in tensors.items()}
    n, per_kv = len(tokens), spec.heads // spec.kv_heads
    x = w["token_embd.weight"][tokens]
    for layer in range(spec.layers):
        at = f"blk.{layer}."
        normed = norm(x, w[at + "attn_norm.weight"])
        parts = {}
        for part, heads in (("q", spec.heads), ("k", spec.kv_heads), ("v", spec.kv_heads)):
            made = normed @ w[f"{at}attn_{part}.weight"].T
            if spec.arch == "qwen2":
                made = made + w[f"{at}attn_{part}.bias"]
            parts[part] = made.view(n, heads, -1).transpose(0, 1)
        if spec.arch == "qwen3":
            parts["q"] = norm(parts["q"], w[at + "attn_q_norm.weight"])
            parts["k"] = norm(parts["k"], w[at + "attn_k_norm.weight"])
        k, v = (t.repeat_interleave(per_kv, dim=0) for t in (turned(parts["k"]), parts["v"]))
        seen = torch.nn.functional.scaled_dot_product_attention(turned(parts["q"]), k, v, is_causal=True)
        x = x + seen.transpose(0, 1).reshape(n, -1) @ w[at + "attn_output.weight"].T
        normed = norm(x, w[at + "ffn_norm.weight"])
        gate, up = normed @ w[at + "ffn_gate.weight"].T, normed @ w[at + "ffn_up.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ w[at + "ffn_down.weight"].T
    head = w["output.weight"] if spec.own_head else w["token_embd.weight"]
    return norm(x, w["output_norm.weight"]) @ head.T


@each_backend
@pytest.mark.parametrize("model", MODELS)
def test_logits_are_the_architectures(name: str, model: str, tmp_path: Path) -> None:
    spec = MODELS[model]
    file = open_gguf(write_tiny_llama(tmp_path / "t.gguf", spec))
    config = llama_config(file.metadata, file.tensors)
    runner = CpuRunner(config, file.tensors, threads=2, max_rows=32, backend=named(name))
    kv = PlainKv(runner.layout, 1, 32)
    runner.attach(kv, 1)
    tokens = [int(t) for t in np.random.default_rng(4).integers(config.vocab, size=20)]
    mine = runner.forward(pack([SlotRows(0, 0, tokens, logits=range(20))]))
    theirs = logits(spec, dict(file.tensors), tokens).numpy()
    # K and V are kept as float16.
    assert np.abs(mine - theirs).max() < 2e-3 * np.abs(theirs).max()
