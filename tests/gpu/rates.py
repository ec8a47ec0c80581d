"""Rates: the GPU, products, whole decode steps."""

from __future__ import annotations

from functools import partial

import torch
import triton

from engine.execution.cuda.shapes import read_bytes
from kernels.gpu import linear as linear_module
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.packing import Packed, PackedFormat
from kernels.gpu.skinny import device_of, packed_candidates, skinny
from kernels.gpu.tiles import PackedTile, packed_class
from tests.gpu.setting import (
    SHAPES,
    ShapeForm,
    Slots,
    build,
    build_packed_dense,
    decode_graph,
    graph_ms,
    matrices,
    random_packed,
    read_rate,
    replay_ms,
    row,
    say,
)


def gpu() -> None:
    name = torch.cuda.get_device_name()
    row(f"GPU {name}, torch {torch.__version__}, triton {triton.__version__}, read-only kernel {read_rate():.2f} TB/s")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    ms = graph_ms(lambda: torch.mm(a, b), 10)
    row(f"matrix rate 8192^3 bf16 {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")


def step(shape: str, form: str = "bf16", context: int = 1024, rows: tuple[int, ...] = (1, 2, 4, 8, 16)) -> None:
    """A whole decode step as it is served, which is CHAINED here, and PLAIN."""
    config = SHAPES[shape]
    rate = read_rate()
    program = build_packed_dense(config, 16) if form == "packed16" else build(config, 16, form=ShapeForm(form))
    slots = Slots(config, 16, context + 8)
    read = read_bytes(program, config)
    for mode in (LaunchMode.CHAINED, LaunchMode.PLAIN):
        program.mode = mode
        alone = 0.0
        for n in rows:
            ms = replay_ms(decode_graph(program, slots, n, context, config.vocab), 30)
            alone = alone or n / ms
            row(
                f"step {shape} {form} {mode} {n} requests at {context}: {ms:.3f} ms, "
                f"{n / ms * 1e3:.0f} tok/s, {read / ms / 1e9:.2f} TB/s of weights = "
                f"{read / ms / 1e9 / rate:.3f} of the read rate, total {n / ms / alone:.2f}x of one"
            )


def _chain(ws: list[Packed], x: torch.Tensor, out: torch.Tensor, epilogue: Epilogue, tile: PackedTile | None) -> None:
    for w in ws:
        skinny(x, w, out, epilogue, tile=tile, mode=LaunchMode.CHAINED)


def packed(shapes: list[str], forms: tuple[str, ...] = ("q4", "q8", "fp8", "nvfp4")) -> None:
    """Rates of the packed kernel by form, matrix and rows, in a chain over enough copies to be cold."""
    rate = read_rate()
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            wide = 2 * n if epilogue is Epilogue.GATED else n
            for form in forms:
                kind = PackedFormat(form)
                one = random_packed(kind, wide, k)
                copies = max(2, min(12, -(-300_000_000 // one.nbytes)))
                ws = [one, *(random_packed(kind, wide, k) for _ in range(copies - 1))]
                cells = []
                for rows in (1, 8, 16, 32):
                    x = torch.randn(rows, k, device="cuda").half()
                    dtype = torch.float16 if epilogue is Epilogue.GATED else torch.float32
                    out = torch.zeros(rows, n, dtype=dtype, device="cuda")
                    ms = graph_ms(partial(_chain, ws, x, out, epilogue, None), 9) / copies
                    cells.append(f"{rows}r {one.nbytes / ms / 1e9:.2f}")
                row(f"packed {shape} {name} {n}x{k} {form} TB/s of {rate:.2f}: " + ", ".join(cells))
                del ws, one


def tune_packed(
    shapes: list[str], forms: tuple[str, ...] = ("q4", "fp8"), rows: tuple[int, ...] = (1, 8, 16, 32)
) -> None:
    """The packed kernel by tile and depth, to see what the computed ones miss."""
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            wide = 2 * n if epilogue is Epilogue.GATED else n
            for form in forms:
                one = random_packed(PackedFormat(form), wide, k)
                copies = max(2, min(12, -(-300_000_000 // one.nbytes)))
                ws = [one, *(random_packed(PackedFormat(form), wide, k) for _ in range(copies - 1))]
                for count in rows:
                    x = torch.randn(count, k, device="cuda").half()
                    dtype = torch.float16 if epilogue is Epilogue.GATED else torch.float32
                    out = torch.zeros(count, n, dtype=dtype, device="cuda")
                    found: list[tuple[float, str]] = []
                    for tile in (None, *packed_candidates(one, n, count, epilogue, device_of(0))):
                        ms = graph_ms(partial(_chain, ws, x, out, epilogue, tile), 5) / copies
                        found.append((ms, f"{tile.tiles}x{tile.depth}" if tile else "computed"))
                    found.sort()
                    choice = next(tile for tile in found if tile[1] != "computed")
                    computed = next(ms for ms, what in found if what == "computed")
                    if choice[0] < 0.98 * computed:
                        tiles, depth = choice[1].split("x")
                        say(f'    ({n}, {k}, "{form}-{epilogue}", {packed_class(count)}, {tiles}, {depth}),')
                    row(
                        f"tiles {shape} {name} {form} {count} rows, TB/s: "
                        + ", ".join(f"{what} {one.nbytes / ms / 1e9:.2f}" for ms, what in found)
                    )
                del ws, one


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
    ws: list[list[torch.Tensor]],
    xs: list[torch.Tensor],
    outs: list[torch.Tensor],
    kinds: list[Epilogue],
    mode: LaunchMode,
) -> None:
    for layer in ws:
        for w, x, out, kind in zip(layer, xs, outs, kinds, strict=True):
            linear(x, w, out, kind, mode=mode)


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
        cublas = partial(_cublas_layers, ws, xs, plain)
        theirs = min(graph_ms(cublas), graph_ms(cublas))
        cells = []
        for mode in LaunchMode:
            ours = partial(_our_layers, ws, xs, outs, kinds, mode)
            ms = min(graph_ms(ours), graph_ms(ours))
            cells.append(
                f"{mode} {ms:.3f} ms = {size / ms / 1e9 / read_rate():.3f} of read rate, ratio {theirs / ms:.3f}"
            )
        row(f"products {shape} {rows} rows: cuBLAS {theirs:.3f} ms; {'; '.join(cells)}")


def ahead(shape: str, form: str = "bf16", context: int = 1024) -> None:
    """A decode step launched `chained`, by the weights of each row that products ask of L2 ahead of their input."""
    config = SHAPES[shape]
    program = build(config, 16, LaunchMode.CHAINED, ShapeForm(form))
    slots = Slots(config, 16, context + 8)
    read = read_bytes(program, config)
    kept = linear_module.AHEAD
    try:
        for linear_module.AHEAD in (0, 64, 128, 256, 512, 1024):
            times = [replay_ms(decode_graph(program, slots, n, context, config.vocab), 30) for n in (1, 4, 8)]
            cells = ", ".join(f"{ms:.3f}" for ms in times)
            row(
                f"ahead {shape} {form} {linear_module.AHEAD}: 1, 4, 8 requests {cells} ms; one at "
                f"{read / times[0] / 1e9 / read_rate():.3f} of the read rate"
            )
    finally:
        linear_module.AHEAD = kept
