"""Timing on a GPU: captured graphs replayed between events, and a kernel that only reads."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import torch
import triton
import triton.language as tl


def graph_ms(work: Callable[[], None], repeats: int = 20) -> float:
    """Median milliseconds of a captured graph's replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return replay_ms(graph, repeats)


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    """Median milliseconds of a graph's replay, after three to warm up."""
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)))


@triton.jit
def _read_kernel(x_ptr, out_ptr, per_program, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * per_program
    acc = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, per_program, BLOCK):
        acc += tl.load(x_ptr + start + i + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@cache
def read_rate(elements: int = 1 << 31) -> float:
    """TB/s of a kernel that only reads, over `elements` of four bytes; measured once a process."""
    x = torch.randint(-9, 9, (elements,), dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    best = 0.0
    for programs, block, warps in ((processors * 16, 4096, 8), (8192, 4096, 8), (16384, 2048, 4), (65536, 4096, 8)):
        per = elements // programs // block * block
        out = torch.empty(programs, dtype=torch.int32, device="cuda")
        launch = partial(_read_kernel[(programs,)], x, out, per, BLOCK=block, num_warps=warps)
        ms = graph_ms(launch, 7)
        best = max(best, per * programs * 4 / ms / 1e9)
    return best
