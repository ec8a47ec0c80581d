"""Rates: the card, products, whole decode steps, prompts."""

from __future__ import annotations

import time
from functools import partial

import torch
import triton

from engine.rows import SlotRows, pack
from kernels.gpu.argmax import ArgmaxScratch, argmax
from kernels.gpu.launch import LaunchMode, default_mode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.program import CudaProgram
from kernels.gpu.skinny import Packed, pack16, skinny
from tests.gpu.setting import (
    SHAPES,
    Slots,
    build,
    graph_ms,
    matrices,
    random4,
    read_rate,
    replay_ms,
    row,
    say,
)


def card() -> None:
    name = torch.cuda.get_device_name()
    row(f"card {name}, torch {torch.__version__}, triton {triton.__version__}, read-only kernel {read_rate():.2f} TB/s")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    ms = graph_ms(lambda: torch.mm(a, b), 10)
    row(f"matrix rate 8192^3 bf16 {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")


def decode_graph(program: CudaProgram, slots: Slots, n: int, context: int, vocab: int) -> torch.cuda.CUDAGraph:
    """A captured decode step of `n` requests, the greedy choice included."""
    shares = [SlotRows(s, context - 1, [s + 1], logits=[0]) for s in range(n)]
    program.use_graphs = False
    program.run(pack(shares), slots.base)
    from kernels.gpu.passes import plan

    shape = plan(pack(shares))[0]
    best = torch.zeros(shape.logits, dtype=torch.int32, device="cuda")
    scratch = ArgmaxScratch(shape.logits, vocab, torch.device("cuda"))
    logits = program._buffers.view("logits", shape.logits, vocab)

    def work() -> None:
        program.enqueue(shape)
        argmax(logits, best, scratch)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    if int(best[0]) != int(logits[0].argmax()):
        row("argmax differs from torch")
    return graph


def step(shape: str, form: str = "bf16", context: int = 1024) -> None:
    config = SHAPES[shape]
    rate = read_rate()
    for label, mode in ((f" {mode}", mode) for mode in LaunchMode):
        program = build(config, 16, mode, form)
        slots = Slots(config, 16, context + 8)
        read = program.weight_bytes() - config.vocab * config.hidden * 2
        base = 0.0
        for n in (1, 2, 4, 8, 16) if mode is default_mode(torch.device("cuda")) else (1, 8):
            ms = replay_ms(decode_graph(program, slots, n, context, config.vocab), 30)
            base = base or n / ms
            row(
                f"step {shape} {form}{label} {n} requests at {context}: {ms:.3f} ms, {n / ms * 1e3:.0f} tok/s, "
                f"{read / ms / 1e9:.2f} TB/s of weights = {read / ms / 1e9 / rate:.3f} of the read rate, "
                f"total {n / ms / base:.2f}x of one"
            )
        del program, slots
        torch.cuda.empty_cache()


def _chain(
    ws: list[Packed], x: torch.Tensor, out: torch.Tensor, epilogue: Epilogue, depth: int, mode: LaunchMode
) -> None:
    for w in ws:
        skinny(x, w, out, epilogue, depth, mode)


def packed(shapes: list[str]) -> None:
    """Rates of the skinny kernel, by depth and launch."""
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            wide = 2 * n if epilogue is Epilogue.GATED else n
            for form in ("q4", "bf16"):
                size = wide * k * (0.625 if form == "q4" else 2)
                copies = max(2, min(12, -(-300_000_000 // int(size))))
                if form == "q4":
                    ws = [random4(wide, k) for _ in range(copies)]
                else:
                    ws = [pack16(torch.randn(wide, k, device="cuda").bfloat16()) for _ in range(copies)]
                cells = []
                for rows in (1, 8, 16, 32):
                    dtype = torch.float16 if form == "q4" else torch.bfloat16
                    x = torch.randn(rows, k, device="cuda").to(dtype)
                    out = torch.zeros(
                        rows, n, dtype=dtype if epilogue is Epilogue.GATED else torch.float32, device="cuda"
                    )
                    best = []
                    for depth in (2, 3, 4, 6, 8) if rows == 1 else (2, 4):
                        for dependent in (False, True):
                            mode = LaunchMode.CHAINED if dependent else LaunchMode.PLAIN
                            work = partial(_chain, ws, x, out, epilogue, depth, mode)
                            best.append((graph_ms(work, 9) / copies, depth, dependent))
                    ms, depth, dependent = min(best)
                    cells.append(f"{rows}r {size / ms / 1e9:.2f} (d{depth}{'p' if dependent else ''})")
                    if rows == 1:
                        say(
                            f"{shape} {name} {form}: "
                            + ", ".join(f"d{d}{'p' if p else ''} {size / t / 1e9:.2f}" for t, d, p in best)
                        )
                row(f"packed {shape} {name} {n}x{k} {form} TB/s: " + ", ".join(cells))


def trace(shape: str) -> None:
    """Device time by kernel in one decode step, launched without dependence so that times do not overlap."""
    config = SHAPES[shape]
    program = build(config, 16, LaunchMode.PLAIN)
    slots = Slots(config, 16, 1040)
    for n in (1, 16):
        graph = decode_graph(program, slots, n, 1024, config.vocab)
        graph.replay()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            graph.replay()
            torch.cuda.synchronize()
        for event in profile.key_averages():
            if event.device_time_total > 20:
                say(
                    f"trace {shape} {n} rows {event.key[:50]:50s} {event.count:5d} x "
                    f"{event.device_time_total / event.count:8.2f} us = {event.device_time_total:8.0f}"
                )


def _our_layers(
    ws: list[list[torch.Tensor]], xs: list[torch.Tensor], outs: list[torch.Tensor], kinds: list[Epilogue]
) -> None:
    for layer in ws:
        for w, x, out, kind in zip(layer, xs, outs, kinds, strict=True):
            linear(x, w, out, kind)


def _cublas_layers(ws: list[list[torch.Tensor]], xs: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
    for layer in ws:
        for w, x, out in zip(layer, xs, outs, strict=True):
            torch.mm(x, w.T, out=out)


def products(shape: str) -> None:
    """The chain of all layers' products alone, ours against cuBLAS, in one graph each."""
    config = SHAPES[shape]
    parts = [m for m in matrices(config) if m[0] != "head"]
    ws = [
        [
            torch.empty(2 * n if e is Epilogue.GATED else n, k, dtype=torch.bfloat16, device="cuda").normal_(0, k**-0.5)
            for _, n, k, e in parts
        ]
        for _ in range(config.layers)
    ]  # fmt: skip
    size = sum(w.nbytes for layer in ws for w in layer)
    for rows in (1, 8, 32, 128):
        xs = [torch.randn(rows, k, device="cuda").bfloat16() for _, n, k, e in parts]
        outs = [
            torch.zeros(rows, n, dtype=torch.bfloat16 if e is Epilogue.GATED else torch.float32, device="cuda")
            for _, n, k, e in parts
        ]
        plain = [torch.zeros(rows, w.shape[0], dtype=torch.bfloat16, device="cuda") for w in ws[0]]

        kinds = [e for _, _, _, e in parts]
        ours = partial(_our_layers, ws, xs, outs, kinds)
        cublas = partial(_cublas_layers, ws, xs, plain)
        a, b = graph_ms(ours), graph_ms(cublas)
        a2, b2 = graph_ms(ours), graph_ms(cublas)
        a, b = min(a, a2), min(b, b2)
        row(
            f"products {shape} {rows} rows: ours {a:.3f} ms = {size / a / 1e9 / read_rate():.3f} of read rate, "
            f"cuBLAS {b:.3f} ms, speed ratio {b / a:.3f}"
        )


def prompt(shape: str, chunk: int = 2048, length: int = 8192) -> None:
    config = SHAPES[shape]
    program = build(config, chunk)
    slots = Slots(config, 1, length)
    times = []
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for at in range(0, length, chunk):
            program.run(
                pack([SlotRows(0, at, [5] * chunk, logits=[chunk - 1] if at + chunk == length else [])]), slots.base
            )
        times.append(time.perf_counter() - start)
    flop = 2.0 * (program.weight_bytes() / 2 - 2 * config.vocab * config.hidden) * length
    seen = 4.0 * config.layers * config.attention.q_width * length * length / 2
    best = min(times)
    row(
        f"prompt {shape} {length} tokens, chunks of {chunk}: {best * 1e3:.0f} ms, {length / best:.0f} tok/s, "
        f"products {flop / best / 1e12:.0f} TFLOP/s, with attention {(flop + seen) / best / 1e12:.0f}"
    )
