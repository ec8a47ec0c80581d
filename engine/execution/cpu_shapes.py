"""A shape's decode steps on the CPU backend."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import SlotRows, pack
from engine.execution.shapes import SeededTensors, ShapeRun, ShapeStep
from engine.memory.kv.pool import KvPool
from engine.models.llama import LlamaConfig
from kernels.kv_view import kv_rows
from kernels.quant_types import BLOCKS, QuantType

REPEATS = 5


def run_on_cpu(
    config: LlamaConfig, form: QuantType, rows: Sequence[int], *, context: int, seed: int, threads: int
) -> ShapeRun:
    """Time decode steps of `rows` requests with `context` tokens each, and compare each row's logits with alone."""
    most = max(rows)
    runner = CpuRunner(config, SeededTensors(config, form, seed), threads=threads, max_rows=most)
    pool = KvPool(runner.layout, [context] * most, margin_rows=0)
    try:
        random = np.random.default_rng(seed)
        for slot in range(most):
            pool.commit(slot, context)
            for tensor in range(len(runner.layout.tensors)):
                view = kv_rows(pool.base(slot, tensor), context, config.attention)
                view[:] = random.standard_normal(view.shape, np.float32)
        runner.attach(pool, most)
        shares = [SlotRows(s, context - 1, [s + 1], logits=(0,)) for s in range(most)]
        alone = [runner.forward(pack([share])).copy() for share in shares]
        spec = BLOCKS[form]
        read = runner.weight_bytes() - config.vocab * config.hidden // spec.values * spec.bytes
        steps = tuple(_step(runner, shares[:n], alone) for n in rows)
        return ShapeRun("cpu", runner.backend, config.layers, read, _read_rate(), steps)
    finally:
        pool.close()


def _step(runner: CpuRunner, shares: list[SlotRows], alone: list[NDArray[np.float32]]) -> ShapeStep:
    batch = pack(shares)
    among = runner.forward(batch).copy()
    same = sum(np.array_equal(a[0].view(np.uint32), b.view(np.uint32)) for a, b in zip(alone, among, strict=False))
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        runner.forward(batch)
        seconds.append(time.perf_counter() - start)
    return ShapeStep(len(shares), statistics.median(seconds), same)


def _read_rate() -> float:
    """Bytes a second of a sum over more memory than the caches hold."""
    import torch

    memory = torch.ones(1 << 25, dtype=torch.int64)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - start)
    return memory.nbytes / min(seconds)
