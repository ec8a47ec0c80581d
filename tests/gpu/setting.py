"""What the GPU stages share: the shapes' matrices, weights kept between measurements, the table."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.execution.cuda.shapes import SeededWeights, Slots, build, decode_graph, random_packed
from engine.execution.shapes import SHAPES, ShapeForm, ShapeTensors
from engine.models import llama
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue
from kernels.gpu.packing import Packed, pack16
from kernels.gpu.program import CudaOps
from kernels.gpu.replay import CudaProgram
from kernels.gpu.timing import graph_ms, read_rate, replay_ms
from kernels.quant_types import RawTensor

__all__ = [
    "SHAPES",
    "TABLE",
    "ShapeForm",
    "Slots",
    "build",
    "build_packed_dense",
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


class PackedDense(SeededWeights):
    """Matrices in bf16, packed for the kernel of few rows: for decode steps alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ShapeForm.BF16)

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        dense = super().matrix(parts)
        assert isinstance(dense, torch.Tensor)
        return pack16(dense)


def build_packed_dense(config: llama.LlamaConfig, max_rows: int, mode: LaunchMode | None = None) -> CudaProgram:
    """A shape's program whose bf16 matrices are packed; its passes have up to 64 rows."""
    ops = CudaOps(PackedDense(7), torch.device("cuda"), config.context, mode)
    llama.record(ops, config, ShapeTensors(config))
    return ops.finish(max_rows)


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
