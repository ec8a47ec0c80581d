"""Measures the products' tiles on this card."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch

from kernels.gpu import tiles
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.tiles import Tile
from kernels.gpu.tuning import CANDIDATES, fits
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
        linear(x, w, torch.zeros(tile.bm, n, dtype=dtype, device="cuda"), kind, tile)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - the other candidates still count
        return f"{tile} {epilogue}: {type(error).__name__} {str(error)[:200]}"
    return ""


def precompile() -> None:
    jobs = [(t, str(e)) for group in CANDIDATES.values() for t in group for e in Epilogue if fits(t, e)]
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
                linear(x, w, out, epilogue, tile)

    return graph_ms(work, 9 if rows <= 128 else 5) / copies


def tune(shapes: list[str], out: Path | None) -> None:
    precompile()
    table = tiles.TABLES.setdefault(torch.cuda.get_device_name(), {})
    lines: list[str] = []
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            gigabytes = n * k * 2 * (2 if epilogue is Epilogue.GATED else 1) / 1e9
            report = []
            for bm in tiles.CLASSES:
                group = CANDIDATES[max(bm, 16)]
                if name == "head" and bm == 256:
                    continue
                test_rows = (1,) if bm == 2 else (2048,) if bm == 256 else (bm,)
                scores: list[tuple[float, Tile, list[float]]] = []
                for tile in group:
                    if k % tile.bk or not fits(tile, epilogue):
                        continue
                    try:
                        times = [product_ms(n, k, epilogue, r, tile) for r in test_rows]
                    except Exception as error:  # noqa: BLE001 - the other candidates still count
                        say(f"{shape} {name} {tile}: {type(error).__name__} {str(error)[:100]}")
                        continue
                    scores.append((sum(times), tile, times))
                scores.sort(key=lambda s: s[0])
                table[n, k, str(epilogue), bm] = scores[0][1]
                cublas = [product_ms(n, k, epilogue, r, None) for r in test_rows]
                if bm == 256:
                    flop = gigabytes * 1e9 * 2048
                    report.append(f"2048r {flop / scores[0][2][0] / 1e9:.0f}/{flop / cublas[0] / 1e9:.0f} TF")
                else:
                    for r, ours, theirs in zip(test_rows, scores[0][2], cublas, strict=True):
                        report.append(f"{r}r {gigabytes / ours:.2f}/{gigabytes / theirs:.2f}")
                for total, tile, times in scores:
                    lines.append(f"{shape} {name} {bm} {total:.4f} {times} {tile}")
            row(f"tile {shape} {name} {n}x{k} ours/cuBLAS TB/s: " + ", ".join(report))
    forget_weights()
    if out is not None:
        (out / "tune.txt").write_text("\n".join(lines))
        (out / "tiles.json").write_text(json.dumps([[*key, asdict(t)] for key, t in table.items()]))
