"""Measures the products' tiles on this GPU."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple
from multiprocessing import get_context
from pathlib import Path

import torch

from kernels.gpu import tiles
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.tile_cache import tile_for
from kernels.gpu.tiles import Tile
from kernels.gpu.tuning import candidates, fits, measured_rows
from tests.gpu.setting import (
    SHAPES,
    forget_weights,
    graph_ms,
    matrices,
    row,
    say,
    weight,
)


def compile_one(job: tuple[Tile, str]) -> str:
    tile, epilogue = job
    try:
        kind = Epilogue(epilogue)
        k, n = max(tile.bk, 64) * 4, max(tile.bn, 16)
        x = torch.zeros(tile.bm, k, dtype=torch.bfloat16, device="cuda")
        w = torch.zeros(n * (2 if kind is Epilogue.GATED else 1), k, dtype=torch.bfloat16, device="cuda")
        dtype = torch.bfloat16 if kind is Epilogue.GATED else torch.float32
        linear(x, w, torch.zeros(tile.bm, n, dtype=dtype, device="cuda"), kind, tile=tile)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - the other candidates still count
        return f"{tile} {epilogue}: {type(error).__name__} {str(error)[:200]}"
    return ""


def processors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def wanted(shapes: list[str], classes: tuple[int, ...]) -> list[tuple[Tile, str]]:
    """The tiles to measure for the shapes' products."""
    jobs: dict[tuple[Tile, str], None] = {}
    for shape in shapes:
        for _, n, _, epilogue in matrices(SHAPES[shape]):
            for row_class in classes:
                for tile in candidates(row_class, n, processors()):
                    if fits(tile, epilogue):
                        jobs[tile, str(epilogue)] = None
    return list(jobs)


def precompile(jobs: list[tuple[Tile, str]]) -> None:
    start = time.time()
    with ProcessPoolExecutor(min(14, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        for problem in pool.map(compile_one, jobs, chunksize=2):
            if problem:
                say("does not compile: " + problem)
    say(f"compiled {len(jobs)} products in {time.time() - start:.0f} s")


def product_ms(n: int, k: int, epilogue: Epilogue, rows: int, tile: Tile | None) -> float:
    """Milliseconds of one product in a chain over enough weight copies to be cold; tile None times cuBLAS."""
    weight_rows = 2 * n if epilogue is Epilogue.GATED else n
    copies = max(2, min(12, -(-400_000_000 // (weight_rows * k * 2))))
    ws = [weight(weight_rows, k, i) for i in range(copies)]
    x = torch.randn(rows, k, device="cuda").bfloat16()
    dtype = torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32
    out = torch.zeros(rows, n, dtype=dtype, device="cuda")
    plain = torch.empty(rows, weight_rows, dtype=torch.bfloat16, device="cuda")

    def work() -> None:
        for w in ws:
            if tile is None:
                torch.mm(x, w.T, out=plain)
            else:
                linear(x, w, out, epilogue, tile=tile)

    return graph_ms(work, 9 if rows <= 128 else 5) / copies


def tune(shapes: list[str], out: Path | None, classes: tuple[int, ...] = tiles.CLASSES) -> None:
    """Every candidate of the classes; the fastest serve the stages after this one. Lines for `tile_data` where it gains
    2 % over the tile chosen before."""
    precompile(wanted(shapes, classes))
    gpu = torch.cuda.get_device_name()
    table = tiles.TABLES.setdefault(gpu, {})
    lines: list[str] = []
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            gigabytes = n * k * 2 * (2 if epilogue is Epilogue.GATED else 1) / 1e9
            report = []
            for bm in classes:
                if name == "head" and bm > 128:
                    continue
                rows = measured_rows(bm)
                chosen = tile_for(gpu, rows, n, k, epilogue)
                scores: list[tuple[float, Tile]] = []
                for tile in dict.fromkeys([chosen, *candidates(bm, n, processors())]):
                    if k % tile.bk or not fits(tile, epilogue):
                        continue
                    try:
                        scores.append((product_ms(n, k, epilogue, rows, tile), tile))
                    except Exception as error:  # noqa: BLE001 - the other candidates still count
                        say(f"{shape} {name} {tile}: {type(error).__name__} {str(error)[:100]}")
                now = {tile: ms for ms, tile in scores}.get(chosen, float("inf"))
                scores.sort(key=lambda s: s[0])
                best, tile = scores[0]
                table[n, k, str(epilogue), bm] = tile
                cublas = product_ms(n, k, epilogue, rows, None)
                unit, size = ("TF", gigabytes * rows) if bm > 128 else ("TB/s", gigabytes)
                report.append(f"{rows}r {size / best:.3g}/{size / now:.3g}/{size / cublas:.3g} {unit}")
                lines += [f"{shape} {name} {bm} {ms:.4f} {tile}" for ms, tile in scores]
                if best < 0.98 * now:
                    say(f"        {(n, k, str(epilogue), bm, *astuple(tile))},")
            row(f"tile {shape} {name} {n}x{k} best/chosen/cuBLAS: " + ", ".join(report))
    forget_weights()
    if out is not None:
        (out / "tune.txt").write_text("\n".join(lines))
        (out / "tiles.json").write_text(json.dumps([[*key, asdict(t)] for key, t in table.items()]))
