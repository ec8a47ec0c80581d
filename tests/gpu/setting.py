"""What the GPU stages share: the shapes' matrices, weights kept between measurements, the table."""

from __future__ import annotations

import torch

from engine.cuda_shapes import Slots, build, decode_graph, random_packed
from engine.models import llama
from engine.shapes import SHAPES, ShapeForm
from kernels.gpu.linear import Epilogue
from kernels.gpu.timing import graph_ms, read_rate, replay_ms

__all__ = [
    "SHAPES",
    "TABLE",
    "ShapeForm",
    "Slots",
    "build",
    "decode_graph",
    "forget_weights",
    "graph_ms",
    "matrices",
    "random_packed",
    "read_rate",
    "replay_ms",
    "row",
    "say",
    "weight",
]

TABLE: list[str] = []


def say(line: str) -> None:
    print(line, flush=True)


def row(line: str) -> None:
    TABLE.append(line)
    say(line)


def matrices(config: llama.LlamaConfig) -> list[tuple[str, int, int, Epilogue]]:
    q, kv = config.attention.q_width, config.attention.kv_width
    return [
        ("qkv", q + 2 * kv, config.hidden, Epilogue.STORE),
        ("out", config.hidden, q, Epilogue.ADD),
        ("gated", config.ffn, config.hidden, Epilogue.GATED),
        ("down", config.hidden, config.ffn, Epilogue.ADD),
        ("head", config.vocab, config.hidden, Epilogue.STORE),
    ]


_WEIGHTS: dict[tuple[int, int, int], torch.Tensor] = {}


def weight(n: int, k: int, copy: int) -> torch.Tensor:
    key = (n, k, copy)
    if key not in _WEIGHTS:
        if sum(w.nbytes for w in _WEIGHTS.values()) > 12_000_000_000:
            _WEIGHTS.clear()
        _WEIGHTS[key] = torch.empty(n, k, dtype=torch.bfloat16, device="cuda").normal_(0.0, k**-0.5)
    return _WEIGHTS[key]


def forget_weights() -> None:
    """Free what `weight` keeps."""
    _WEIGHTS.clear()
