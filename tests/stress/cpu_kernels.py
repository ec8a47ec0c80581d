"""`python -m tests.stress.cpu_kernels MODEL.gguf`: milliseconds a batch, and where they go, on this machine.

Decode batches of 1, 2, 4 and 8 slots with 200 committed rows each, then prompt chunks, each the median of its runs.
Times depend on the machine and on what else runs; compare ratios taken in one run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.models import llama
from engine.models.gguf_config import llama_config
from engine.models.weights.gguf import open_gguf
from kernels.cpu import abi
from kernels.cpu.backend import choose
from kernels.cpu.native import NativeProgram
from kernels.cpu.threads import available
from kernels.program import Program, RowBatch

DECODE = (1, 2, 4, 8)
CHUNKS = (32, 128, 512)
COMMITTED = 200


def chain(slots: Sequence[int], start: int, rows: int, tokens: NDArray[np.int32]) -> RowBatch:
    """`rows` rows for each slot from KV row `start` on; logits of each slot's last."""
    slot = np.repeat(np.asarray(slots, np.int32), rows)
    place = np.tile(np.arange(start, start + rows, dtype=np.int32), len(slots))
    starts = np.arange(len(slot) + 1, dtype=np.int32)
    last = np.arange(rows - 1, len(slot), rows, dtype=np.int32)
    return RowBatch(slot, tokens[: len(slot)], place, place, place, starts, place, last)


def measure(program: Program, rows: RowBatch, kv_base: NDArray[np.uint64], runs: int) -> str:
    """One line: median and least milliseconds, rows a second, and each operation's share."""
    times: list[float] = []
    before = program.op_seconds.copy() if isinstance(program, NativeProgram) else np.zeros(len(abi.OP_NAMES))
    for _ in range(runs):
        start = time.perf_counter()
        program.run(rows, kv_base)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    line = f"{median * 1e3:9.2f} ms  least {min(times) * 1e3:9.2f}  {rows.n / median:8.0f} rows/s"
    if isinstance(program, NativeProgram):
        spent = program.op_seconds - before
        shares = sorted(zip(spent / spent.sum(), abi.OP_NAMES, strict=True), reverse=True)
        line += "  " + "  ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.01)
    return line


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.cpu_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=available())
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(arguments)
    file = open_gguf(options.model)
    config = llama_config(file.metadata, file.tensors)
    choice = choose()
    recorder = choice.recorder(options.threads, max(CHUNKS))
    begin = time.perf_counter()
    llama.record(recorder, config, file.tensors)
    program = recorder.finish()
    print(f"{program.name} ({choice.reason}), {options.threads} threads, loaded in {time.perf_counter() - begin:.2f} s")
    width, tensors = config.attention.kv_width, 2 * config.layers
    memory = np.zeros((max(DECODE), tensors, max(CHUNKS), width), np.float16)
    kv_base = np.array([[memory[s, t].ctypes.data for t in range(tensors)] for s in range(max(DECODE))], np.uint64)
    tokens = np.random.default_rng(0).integers(config.vocab, size=max(CHUNKS), dtype=np.int32)
    for slots in DECODE:
        rows = chain(range(slots), COMMITTED, 1, tokens)
        print(f"decode {slots:4d}", measure(program, rows, kv_base, options.runs))
    for chunk in CHUNKS:
        rows = chain([0], 0, chunk, tokens)
        print(f"prompt {chunk:4d}", measure(program, rows, kv_base, max(2, options.runs // 5)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
