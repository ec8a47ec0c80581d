"""A shape's decode steps on a CUDA GPU: random weights made there, captured steps, bits of a row alone and among."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.execution.rows import SlotRows, pack
from engine.execution.shapes import ShapeForm, ShapeRun, ShapeStep, ShapeTensors
from engine.models import llama
from kernels.gpu.argmax import ArgmaxScratch, argmax
from kernels.gpu.batch import plan
from kernels.gpu.launch import LaunchMode
from kernels.gpu.packing import FP8_BLOCK, STEP, TILE, Packed, PackedFormat, pack_fp8
from kernels.gpu.program import CudaOps
from kernels.gpu.replay import CudaProgram
from kernels.gpu.timing import read_rate, replay_ms
from kernels.quant_types import RawTensor

PACKED_AS = {
    ShapeForm.Q4: PackedFormat.Q4,
    ShapeForm.Q8: PackedFormat.Q8,
    ShapeForm.FP8: PackedFormat.FP8,
    ShapeForm.NVFP4: PackedFormat.NVFP4,
}
SLACK_ROWS = 8


class SeededWeights:
    """Random weights made on the device from a seed (implements `kernels.gpu.weights.WeightSource`)."""

    def __init__(self, seed: int, form: ShapeForm) -> None:
        self.dtype = torch.bfloat16 if form is ShapeForm.BF16 else torch.float16
        self._form = PACKED_AS.get(form)
        self._generator = torch.Generator("cuda").manual_seed(seed)

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        n, k = sum(p.shape[0] for p in parts), parts[0].shape[1]
        return self._dense(n, k) if self._form is None else random_packed(self._form, n, k, self._generator)

    def runs(self, parts: Sequence[RawTensor]) -> list[list[RawTensor]]:
        return [list(parts)]

    def packs(self, tensor: RawTensor) -> bool:
        return self._form is not None

    def table(self, tensor: RawTensor) -> torch.Tensor:
        return self._dense(*tensor.shape)

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        out = torch.empty(tensor.shape, dtype=torch.float32, device="cuda")
        return out.normal_(1.0, 0.1, generator=self._generator)

    def _dense(self, n: int, k: int) -> torch.Tensor:
        out = torch.empty((n, k), dtype=self.dtype, device="cuda")
        return out.normal_(0.0, k**-0.5, generator=self._generator)


def random_packed(form: PackedFormat, n: int, k: int, generator: torch.Generator | None = None) -> Packed:
    """Random packed weights on the GPU whose values, times alpha, are of about k**-0.5: codes are bits as they come,
    scales lie where packing would put them."""
    shape = (n // TILE, k // STEP)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(size, device="cuda", generator=generator).add_(0.5)

    def words(count: int) -> torch.Tensor:
        low, high = -(1 << 31), 1 << 31
        return torch.randint(low, high, (*shape, count), dtype=torch.int32, device="cuda", generator=generator)

    def filled(value: float) -> torch.Tensor:
        return torch.full((n,), value * k**-0.5, device="cuda")

    if form is PackedFormat.Q4:  # half, r, row half, scale or minimum; rows r + 8 are stored times 16
        step = uniform(*shape, 2, 8, 2).mul_(2.0**-8)
        stored = step * torch.tensor([2.0**18, 2.0**22], device="cuda")
        scales = torch.stack((stored, -7.5 * step), dim=-1).half()
        return Packed(form, words(128), _bytes(scales, shape), filled(2.0**8 / 4.8), n, k)
    if form is PackedFormat.Q8:
        scales = uniform(*shape, 2, 8, 2).mul_(2.0**14).half()
        return Packed(form, words(256), _bytes(scales, shape), filled(2.0**10 / 76), n, k)
    if form is PackedFormat.Q8_SHORT:
        scales = uniform(*shape, 2, 8, 2, 2).mul_(2.0**14).half()
        return Packed(form, words(256), _bytes(scales, shape), filled(2.0**10 / 76), n, k)
    if form is PackedFormat.Q8_MIN:
        step = uniform(*shape, 2, 8, 2).mul_(2.0**-10)
        scales = torch.stack((step * 2.0**24, -127.5 * step), dim=-1).half()
        return Packed(form, words(256), _bytes(scales, shape), filled(2.0**10 / 76), n, k)
    if form is PackedFormat.FP8:
        values = torch.empty((n, k), device="cuda").normal_(0.0, 32.0, generator=generator).to(torch.float8_e4m3fn)
        return pack_fp8(values, uniform(-(-n // FP8_BLOCK), -(-k // FP8_BLOCK)).mul_(k**-0.5 / 32))
    if form is PackedFormat.NVFP4:
        scales = uniform(*shape, 64).mul_(100).to(torch.float8_e4m3fn)
        return Packed(form, words(128), _bytes(scales, shape), filled(2.0**14 / 300), n, k)
    raise ValueError(f"no random weights of the form {form}")


def _bytes(scales: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return scales.contiguous().view(torch.uint8).reshape(*shape, -1)


def build(
    config: llama.LlamaConfig,
    max_rows: int,
    mode: LaunchMode | None = None,
    form: ShapeForm = ShapeForm.BF16,
    seed: int = 7,
) -> CudaProgram:
    """The shape's program with random weights."""
    ops = CudaOps(SeededWeights(seed, form), torch.device("cuda"), config.context, mode)
    llama.record(ops, config, ShapeTensors(config))
    return ops.finish(max_rows)


class Slots:
    """KV of `slots` slots of `window` rows in plain tensors, filled with noise."""

    def __init__(self, config: llama.LlamaConfig, slots: int, window: int) -> None:
        tensors = 2 * config.layers
        self.kv = torch.empty(
            (slots, tensors, window, config.attention.kv_width), dtype=torch.float16, device="cuda"
        ).normal_(0.0, 1.0, generator=torch.Generator("cuda").manual_seed(3))
        self.base = np.array([[self.kv[s, t].data_ptr() for t in range(tensors)] for s in range(slots)], np.uint64)


def read_bytes(program: CudaProgram, config: llama.LlamaConfig) -> int:
    """Bytes of weights that a decode step reads: all but the embedding table."""
    return program.weight_bytes() - config.vocab * config.hidden * 2


def decode_graph(program: CudaProgram, slots: Slots, n: int, context: int, vocab: int) -> torch.cuda.CUDAGraph:
    """A captured decode step of `n` requests, the greedy choice included. Raises RuntimeError where the choice is not
    torch's."""
    batch = pack([SlotRows(s, context - 1, [s + 1], logits=[0]) for s in range(n)])
    program.use_graphs = False
    program.run(batch, slots.base)
    shape = plan(batch)[0]
    best = torch.zeros(shape.logits, dtype=torch.int32, device="cuda")
    scratch = ArgmaxScratch(shape.logits, vocab, torch.device("cuda"))
    logits = program.logits(shape.logits)

    def work() -> None:
        program.enqueue(shape)
        argmax(logits, best, scratch, program.mode)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    if int(best[0]) != int(logits[0].argmax()):
        raise RuntimeError("the greedy choice differs from torch's")
    return graph


def run_on_gpu(
    config: llama.LlamaConfig, form: ShapeForm, rows: Sequence[int], *, context: int, seed: int, repeats: int = 30
) -> ShapeRun:
    """Time captured decode steps of `rows` requests with `context` tokens each on the current GPU, and compare each
    row's logits with alone. Raises torch.OutOfMemoryError where the shape does not fit."""
    rate = read_rate()
    torch.cuda.empty_cache()
    most = max(rows)
    program = build(config, most, form=form, seed=seed)
    slots = Slots(config, most, context + SLACK_ROWS)
    program.use_graphs = False

    def logits(first: int, count: int) -> np.ndarray:
        shares = [SlotRows(s, context - 1, [s + 1], logits=[0]) for s in range(first, first + count)]
        return program.run(pack(shares), slots.base).copy().view(np.uint32)

    alone = [logits(s, 1)[0] for s in range(most)]
    steps = []
    for n in rows:
        same = sum(np.array_equal(a, b) for a, b in zip(alone, logits(0, n), strict=False))
        ms = replay_ms(decode_graph(program, slots, n, context, config.vocab), repeats)
        steps.append(ShapeStep(n, ms / 1e3, same))
    name = torch.cuda.get_device_name()
    return ShapeRun(name, program.name, config.layers, read_bytes(program, config), rate * 1e12, tuple(steps))
