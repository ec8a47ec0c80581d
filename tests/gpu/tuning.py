"""Measures the products' tiles on this card: all candidates, or those alone that finish a part of themselves."""

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
from kernels.gpu.tuning import CANDIDATES, candidates, fits
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


def processors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def wanted(shapes: list[str], *, shared: bool) -> list[tuple[Tile, str]]:
    """The tiles to measure for the shapes' products; where `shared`, only those that finish a part of themselves."""
    jobs: dict[tuple[Tile, str], None] = {}
    for shape in shapes:
        for _, n, _, epilogue in matrices(SHAPES[shape]):
            for rows in CANDIDATES:
                for tile in candidates(rows, n, processors()):
                    if fits(tile, epilogue) and (tile.share or not shared):
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
                linear(x, w, out, epilogue, tile)

    return graph_ms(work, 9 if rows <= 128 else 5) / copies


def tune(shapes: list[str], out: Path | None) -> None:
    precompile(wanted(shapes, shared=False))
    table = tiles.TABLES.setdefault(torch.cuda.get_device_name(), {})
    lines: list[str] = []
    for shape in shapes:
        for name, n, k, epilogue in matrices(SHAPES[shape]):
            gigabytes = n * k * 2 * (2 if epilogue is Epilogue.GATED else 1) / 1e9
            report = []
            for bm in tiles.CLASSES:
                group = candidates(max(bm, 16), n, processors())
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


def tune_shared(shapes: list[str]) -> None:
    """Tiles that finish a part of themselves against the chosen ones; lines for `tile_data` where they gain 2 %."""
    precompile(wanted(shapes, shared=True))
    name = torch.cuda.get_device_name()
    for shape in shapes:
        for what, n, k, epilogue in matrices(SHAPES[shape]):
            for bm in (c for c in tiles.CLASSES if c <= 128 and what != "head"):
                rows = 1 if bm == 2 else bm
                group = [t for t in candidates(max(bm, 16), n, processors()) if t.share and fits(t, epilogue)]
                scores = sorted((product_ms(n, k, epilogue, rows, t), i) for i, t in enumerate(group) if k % t.bk == 0)
                chosen = tile_for(name, rows, n, k, epilogue)
                now = product_ms(n, k, epilogue, rows, chosen)
                if not scores:
                    continue
                best = group[scores[0][1]]
                cublas = product_ms(n, k, epilogue, rows, None)
                row(
                    f"shared {shape} {what} {n}x{k} {rows} rows: {best.outputs} of {best} {scores[0][0] * 1e3:.2f} us, "
                    f"chosen {now * 1e3:.2f}, cuBLAS {cublas * 1e3:.2f}"
                )
                if scores[0][0] < 0.98 * now:
                    say(f"        {(n, k, str(epilogue), bm, *astuple(best))},")
    forget_weights()
