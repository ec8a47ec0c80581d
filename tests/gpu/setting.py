"""What the GPU stages share: two shapes, random weights from a seed, KV slots, timing of captured graphs, the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import triton
import triton.language as tl

from engine.models import llama
from kernels.forms import Form, RawTensor
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue
from kernels.gpu.program import CudaOps, CudaProgram
from kernels.gpu.skinny import Packed

SHAPES = {
    "llama-1b": llama.LlamaConfig(
        layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, context=16384,
        rms_eps=1e-5, rope_base=5e5, rope_dims=64,
    ),
    "qwen3-8b": llama.LlamaConfig(
        layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8, head_dim=128, vocab=151936, context=16384,
        rms_eps=1e-6, rope_base=1e6, rope_dims=128, rope_interleaved=False, qk_norm=True,
    ),
}  # fmt: skip
TABLE: list[str] = []


def say(line: str) -> None:
    print(line, flush=True)


def row(line: str) -> None:
    TABLE.append(line)
    say(line)


class SeededWeights:
    """Random weights made on the device from a seed, dense or 4-bit (implements `kernels.gpu.weights.WeightSource`)."""

    def __init__(self, seed: int, form: str) -> None:
        self.dtype = torch.bfloat16 if form == "bf16" else torch.float16
        self._form = form
        self._generator = torch.Generator("cuda").manual_seed(seed)

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        n, k = sum(p.shape[0] for p in parts), parts[0].shape[1]
        return self._dense(n, k) if self._form == "bf16" else random4(n, k, self._generator)

    def table(self, tensor: RawTensor) -> torch.Tensor:
        return self._dense(*tensor.shape)

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        out = torch.empty(tensor.shape, dtype=torch.float32, device="cuda")
        return out.normal_(1.0, 0.1, generator=self._generator)

    def _dense(self, n: int, k: int) -> torch.Tensor:
        out = torch.empty((n, k), dtype=self.dtype, device="cuda")
        return out.normal_(0.0, k**-0.5, generator=self._generator)


def random4(n: int, k: int, generator: torch.Generator | None = None) -> Packed:
    """Random 4-bit weights with values of about k**-0.5."""
    shape = (n // 16, k // 64, 8, 4, 4)
    words = torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int32, device="cuda", generator=generator)
    scale = torch.rand((n // 16, k // 64, 8, 2, 2, 1), device="cuda", generator=generator).add_(0.5).mul_(k**-0.5 / 5)
    return Packed(words, torch.cat((scale, -7.5 * scale), dim=-1).half().contiguous(), n, k)


class ShapeOnly(Mapping[str, RawTensor]):
    """Tensors of a shape's model by name, without data."""

    def __init__(self, config: llama.LlamaConfig) -> None:
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
        return RawTensor(name, Form.BF16, self._shapes[name], np.empty(0, np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def build(config: llama.LlamaConfig, max_rows: int, mode: LaunchMode | None = None, form: str = "bf16") -> CudaProgram:
    ops = CudaOps(SeededWeights(7, form), torch.device("cuda"), config.context, mode)
    llama.record(ops, config, ShapeOnly(config))
    return ops.finish(max_rows)


class Slots:
    """KV of `slots` slots of `window` rows in plain tensors, filled with noise."""

    def __init__(self, config: llama.LlamaConfig, slots: int, window: int) -> None:
        tensors = 2 * config.layers
        self.kv = torch.empty(
            (slots, tensors, window, config.attention.kv_width), dtype=torch.float16, device="cuda"
        ).normal_(0.0, 1.0, generator=torch.Generator("cuda").manual_seed(3))
        self.base = np.array([[self.kv[s, t].data_ptr() for t in range(tensors)] for s in range(slots)], np.uint64)


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


def graph_ms(work: Callable[[], None], repeats: int = 20) -> float:
    """Median milliseconds of a captured graph's replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return replay_ms(graph, repeats)


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


@triton.jit
def _read_kernel(x_ptr, out_ptr, per_program, BLOCK: tl.constexpr):  # noqa: N803
    start = tl.program_id(0).to(tl.int64) * per_program
    acc = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, per_program, BLOCK):
        acc += tl.load(x_ptr + start + i + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc, axis=0))


READ_RATE = 0.0


def read_rate() -> float:
    """TB/s of a kernel that only reads 8 GB."""
    global READ_RATE
    if not READ_RATE:
        x = torch.randint(-9, 9, (1 << 31,), dtype=torch.int32, device="cuda")
        best = 0.0
        for programs, block, warps in ((132 * 16, 4096, 8), (8192, 4096, 8), (16384, 2048, 4), (65536, 4096, 8)):
            per = x.numel() // programs // block * block
            out = torch.empty(programs, dtype=torch.int32, device="cuda")
            launch = partial(_read_kernel[(programs,)], x, out, per, BLOCK=block, num_warps=warps)
            ms = graph_ms(launch, 7)
            best = max(best, per * programs * 4 / ms / 1e9)
        READ_RATE = best
    return READ_RATE
