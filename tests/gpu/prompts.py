"""Prompt reading: its time by launch mode, and each kernel's share of it against the bytes it moves."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.rows import SlotRows, pack
from engine.models.llama import LlamaConfig
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue
from kernels.gpu.replay import CudaProgram
from tests.gpu.setting import SHAPES, ShapeForm, Slots, build, matrices, read_rate, row

_WARM, _TIMED = 3, 5
"""Readings until every pass has its graph (the first logits move buffers, which drops graphs), and readings after."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's calls in one reading of a prompt, and the device's milliseconds in them."""

    calls: int
    ms: float


class Reader:
    """Reads `length` tokens in chunks of `chunk`, over and over."""

    def __init__(self, config: LlamaConfig, chunk: int, length: int, form: ShapeForm) -> None:
        self.program: CudaProgram = build(config, chunk, form=form)
        self.length = length
        self._slots = Slots(config, 1, length)
        starts = range(0, length, chunk)
        text = np.random.default_rng(3).integers(0, config.vocab, length).tolist()
        self._passes = [
            pack([SlotRows(0, at, text[at : at + chunk], logits=[chunk - 1] if at == starts[-1] else [])])
            for at in starts
        ]

    def read(self) -> float:
        """Milliseconds of one reading."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for rows in self._passes:
            self.program.run(rows, self._slots.base)
        return (time.perf_counter() - start) * 1e3

    def captured(self) -> float:
        """Median milliseconds of a reading whose passes are all replayed."""
        for _ in range(_WARM):
            self.read()
        return statistics.median(self.read() for _ in range(_TIMED))

    def kernels(self) -> dict[str, Kernel]:
        """One reading by kernel."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.read()
        found = {}
        for event in profile.key_averages():
            found[event.key.split("(")[0]] = Kernel(event.count, event.device_time_total / 1e3)
        return found


def prompt(shape: str, chunk: int, form: str = "bf16", length: int = 8192) -> None:
    config = SHAPES[shape]
    reader = Reader(config, chunk, length, ShapeForm(form))
    weights = config.layers * sum(
        n * k * (2 if epilogue is Epilogue.GATED else 1) for name, n, k, epilogue in matrices(config) if name != "head"
    )
    flop = 2.0 * weights * length
    seen = 4.0 * config.layers * config.attention.q_width * length * length / 2
    row(f"prompt {shape} {form} {length} tokens, chunks of {chunk}: the first reading {reader.read():.0f} ms")
    for mode in LaunchMode:
        reader.program.mode = mode
        ms = reader.captured()
        products, both = flop / ms / 1e9, (flop + seen) / ms / 1e9
        row(
            f"prompt {shape} {form} chunks of {chunk} {mode}, graphs: {ms:.1f} ms, "
            f"{length / ms * 1e3:.0f} tok/s, products {products:.0f} TFLOP/s, with attention {both:.0f}"
        )
        _by_kernel(shape, config, length, mode, reader.kernels())


def _by_kernel(shape: str, config: LlamaConfig, length: int, mode: str, kernels: dict[str, Kernel]) -> None:
    """Only where no kernel starts before the one ahead has ended is a kernel's time its own."""
    own = mode == LaunchMode.PLAIN
    attention = config.attention
    moved = {
        "_rms_norm_kernel": 2.0 * config.layers * length * config.hidden * (4 + 2),
        "_rotary_kv_kernel": 1.0 * config.layers * length * (attention.q_width + 2 * attention.kv_width) * (4 + 2),
    }
    total = sum(k.ms for k in kernels.values())
    for name, kernel in sorted(kernels.items(), key=lambda item: -item[1].ms):
        if kernel.ms < 0.002 * total:
            continue
        share = f", {moved[name] / kernel.ms / 1e9 / read_rate():.2f} of the read rate" if name in moved and own else ""
        row(
            f"  {shape} {mode}{'' if own else ', waiting included'} {name[:40]}: {kernel.ms:.1f} ms, {kernel.calls} x "
            f"{kernel.ms / kernel.calls * 1e3:.1f} us{share}"
        )
    row(f"  {shape} {mode}: all kernels {total:.1f} ms")
