"""Figures and bit checks of the CUDA engine on one card.

    python tests/gpu/bench_gpu.py card tune bits step prompt [--shape qwen3-8b] [--out DIR]

Stages run in the order given; `tune` leaves its tiles to the stages after it. A short table comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.cuda_runner import CudaRunner
from engine.kv.cuda_driver import CudaDriver, supported
from engine.kv.cuda_vmm import CudaRange, PageStock, device_ranges
from engine.kv.pool import KvPool
from engine.models import llama
from engine.models.gguf_config import llama_config
from engine.rows import SlotRows, pack
from engine.tokenizer import load_tokenizer
from engine.weights.gguf import open_gguf
from kernels.forms import Form, RawTensor
from kernels.gpu import tiles, twins
from kernels.gpu.argmax import ArgmaxScratch, argmax
from kernels.gpu.launch import LaunchMode, default_mode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.program import CudaOps, CudaProgram
from kernels.gpu.skinny import MAX_ROWS, Packed, pack16, skinny, unpack, unpack_rows
from kernels.gpu.tiles import Tile

SHAPES = {
    "llama-1b": llama.LlamaConfig(
        layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, context=16384,
        rms_eps=1e-5, rope_base=5e5, rope_dims=64,
    ),
    "qwen3-8b": llama.LlamaConfig(
        layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8, head_dim=128, vocab=151936, context=16384,
        rms_eps=1e-6, rope_base=1e6, rope_dims=128, rope_interleaved=False, qk_norm=True,
    ),
}  # fmt: skip
TABLE: list[str] = []


def say(line: str) -> None:
    print(line, flush=True)


def row(line: str) -> None:
    TABLE.append(line)
    say(line)


# ---------------------------------------------------------------------------------------------------------- weights


class SeededWeights:
    """Random weights made on the device from a seed, dense or 4-bit (implements `kernels.gpu.weights.WeightSource`)."""

    def __init__(self, seed: int, form: str) -> None:
        self.dtype = torch.bfloat16 if form == "bf16" else torch.float16
        self._form = form
        self._generator = torch.Generator("cuda").manual_seed(seed)

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        n, k = sum(p.shape[0] for p in parts), parts[0].shape[1]
        return self._dense(n, k) if self._form == "bf16" else random4(n, k, self._generator)

    def table(self, tensor: RawTensor) -> torch.Tensor:
        return self._dense(*tensor.shape)

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        out = torch.empty(tensor.shape, dtype=torch.float32, device="cuda")
        return out.normal_(1.0, 0.1, generator=self._generator)

    def _dense(self, n: int, k: int) -> torch.Tensor:
        out = torch.empty((n, k), dtype=self.dtype, device="cuda")
        return out.normal_(0.0, k**-0.5, generator=self._generator)


def random4(n: int, k: int, generator: torch.Generator | None = None) -> Packed:
    """Random 4-bit weights with values of about k**-0.5."""
    shape = (n // 16, k // 64, 8, 4, 4)
    words = torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int32, device="cuda", generator=generator)
    scale = torch.rand((n // 16, k // 64, 8, 2, 2, 1), device="cuda", generator=generator).add_(0.5).mul_(k**-0.5 / 5)
    return Packed(words, torch.cat((scale, -7.5 * scale), dim=-1).half().contiguous(), n, k)


class ShapeOnly(Mapping[str, RawTensor]):
    """Tensors of a shape's model by name, without data."""

    def __init__(self, config: llama.LlamaConfig) -> None:
        q, kv = config.attention.q_width, config.attention.kv_width
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (config.vocab, config.hidden),
            "output.weight": (config.vocab, config.hidden),
            "output_norm.weight": (config.hidden,),
        }
        for i in range(config.layers):
            block = {
                "attn_norm": (config.hidden,), "ffn_norm": (config.hidden,),
                "attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,),
                "attn_q": (q, config.hidden), "attn_k": (kv, config.hidden), "attn_v": (kv, config.hidden),
                "attn_output": (config.hidden, q), "ffn_gate": (config.ffn, config.hidden),
                "ffn_up": (config.ffn, config.hidden), "ffn_down": (config.hidden, config.ffn),
            }  # fmt: skip
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
        self._shapes = shapes

    def __getitem__(self, name: str) -> RawTensor:
        return RawTensor(name, Form.BF16, self._shapes[name], np.empty(0, np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def build(config: llama.LlamaConfig, max_rows: int, mode: LaunchMode | None = None, form: str = "bf16") -> CudaProgram:
    ops = CudaOps(SeededWeights(7, form), torch.device("cuda"), config.context, mode)
    llama.record(ops, config, ShapeOnly(config))
    return ops.finish(max_rows)


class Slots:
    """KV of `slots` slots of `window` rows in plain tensors, filled with noise."""

    def __init__(self, config: llama.LlamaConfig, slots: int, window: int) -> None:
        tensors = 2 * config.layers
        self.kv = torch.empty(
            (slots, tensors, window, config.attention.kv_width), dtype=torch.float16, device="cuda"
        ).normal_(0.0, 1.0, generator=torch.Generator("cuda").manual_seed(3))
        self.base = np.array([[self.kv[s, t].data_ptr() for t in range(tensors)] for s in range(slots)], np.uint64)


# ---------------------------------------------------------------------------------------------------------- timing


def graph_ms(work: Callable[[], None], repeats: int = 20) -> float:
    """Median milliseconds of a captured graph's replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return replay_ms(graph, repeats)


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


@triton.jit
def _read_kernel(x_ptr, out_ptr, per_program, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * per_program
    acc = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, per_program, BLOCK):
        acc += tl.load(x_ptr + start + i + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc, axis=0))


READ_RATE = 0.0


def read_rate() -> float:
    """TB/s of a kernel that only reads 8 GB."""
    global READ_RATE
    if not READ_RATE:
        x = torch.randint(-9, 9, (1 << 31,), dtype=torch.int32, device="cuda")
        best = 0.0
        for programs, block, warps in ((132 * 16, 4096, 8), (8192, 4096, 8), (16384, 2048, 4), (65536, 4096, 8)):
            per = x.numel() // programs // block * block
            out = torch.empty(programs, dtype=torch.int32, device="cuda")
            ms = graph_ms(lambda p=programs, n=per, b=block, w=warps, o=out: _read_kernel[(p,)](x, o, n, BLOCK=b, num_warps=w), 7)  # fmt: skip
            best = max(best, per * programs * 4 / ms / 1e9)
        READ_RATE = best
    return READ_RATE


def card() -> None:
    name = torch.cuda.get_device_name()
    row(f"card {name}, torch {torch.__version__}, triton {triton.__version__}, read-only kernel {read_rate():.2f} TB/s")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    ms = graph_ms(lambda: torch.mm(a, b), 10)
    row(f"matrix rate 8192^3 bf16 {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")


# ---------------------------------------------------------------------------------------------------------- tiles

CANDIDATES: dict[int, list[Tile]] = {
    16: [
        Tile(16, 16, 128, 4, 4), Tile(16, 16, 256, 4, 3), Tile(16, 16, 256, 4, 5), Tile(16, 16, 128, 2, 6),
        Tile(16, 16, 512, 4, 3), Tile(16, 32, 128, 4, 4), Tile(16, 32, 128, 4, 6), Tile(16, 32, 256, 4, 3),
        Tile(16, 32, 256, 8, 4), Tile(16, 64, 64, 4, 6), Tile(16, 64, 128, 4, 4), Tile(16, 64, 64, 4, 6, swap=True),
        Tile(16, 64, 128, 4, 4, swap=True), Tile(16, 64, 128, 8, 5), Tile(16, 128, 64, 4, 5, swap=True),
        Tile(16, 16, 256, 4, 6), Tile(16, 32, 256, 4, 5), Tile(16, 32, 128, 4, 8), Tile(16, 64, 128, 4, 6, swap=True),
        Tile(16, 64, 256, 4, 4, swap=True), Tile(16, 32, 512, 4, 3), Tile(16, 32, 256, 4, 4, swap=True),
    ],
    32: [
        Tile(32, 32, 128, 4, 4), Tile(32, 16, 256, 4, 3), Tile(32, 64, 64, 4, 6, swap=True), Tile(32, 64, 128, 4, 3),
        Tile(32, 64, 128, 4, 4, swap=True), Tile(32, 128, 64, 4, 5, swap=True), Tile(32, 64, 128, 4, 6, swap=True),
        Tile(32, 32, 256, 4, 4),
    ],
    64: [
        Tile(64, 32, 128, 4, 3), Tile(64, 64, 64, 4, 5), Tile(64, 64, 128, 4, 3), Tile(64, 64, 64, 4, 5, swap=True),
        Tile(64, 64, 128, 4, 4, swap=True), Tile(64, 128, 64, 4, 4, swap=True), Tile(64, 64, 128, 4, 5, swap=True),
    ],
    128: [
        Tile(128, 64, 64, 8, 3), Tile(128, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3), Tile(128, 32, 128, 4, 3),
        Tile(128, 64, 128, 8, 3), Tile(128, 64, 64, 4, 4, swap=True), Tile(128, 128, 64, 4, 4, swap=True), Tile(128, 32, 128, 4, 4),
        Tile(128, 64, 128, 4, 4, swap=True), Tile(128, 64, 128, 8, 4),
    ],
    256: [
        Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 4, 4),
        Tile(256, 128, 64, 8, 3), Tile(128, 128, 128, 8, 3),
        Tile(128, 64, 64, 4, 4),
    ],
}  # fmt: skip


def matrices(config: llama.LlamaConfig) -> list[tuple[str, int, int, Epilogue]]:
    q, kv = config.attention.q_width, config.attention.kv_width
    return [
        ("qkv", q + 2 * kv, config.hidden, Epilogue.STORE),
        ("out", config.hidden, q, Epilogue.ADD),
        ("gated", config.ffn, config.hidden, Epilogue.GATED),
        ("down", config.hidden, config.ffn, Epilogue.ADD),
        ("head", config.vocab, config.hidden, Epilogue.STORE),
    ]


def fits(tile: Tile, epilogue: Epilogue) -> bool:
    """Whether the tile's pipeline fits a block's shared memory and registers on compute capability 9.0."""
    weights = 2 if epilogue is Epilogue.GATED else 1
    depth = tile.bk * 2 * (tile.bm + weights * tile.bn) * tile.stages
    registers = tile.bm * tile.bn * weights / (tile.warps * 32)
    return depth <= 220_000 and registers <= 160


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
    except Exception as error:  # noqa: BLE001 - a candidate that does not compile is reported and left out
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


_WEIGHTS: dict[tuple[int, int, int], torch.Tensor] = {}


def weight(n: int, k: int, copy: int) -> torch.Tensor:
    key = (n, k, copy)
    if key not in _WEIGHTS:
        if sum(w.nbytes for w in _WEIGHTS.values()) > 12_000_000_000:
            _WEIGHTS.clear()
        _WEIGHTS[key] = torch.empty(n, k, dtype=torch.bfloat16, device="cuda").normal_(0.0, k**-0.5)
    return _WEIGHTS[key]


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
    _WEIGHTS.clear()
    if out is not None:
        (out / "tune.txt").write_text("\n".join(lines))
        (out / "tiles.json").write_text(json.dumps([[*key, asdict(t)] for key, t in table.items()]))


# ---------------------------------------------------------------------------------------------------------- bits


def bits_products(shapes: list[str], cases: int) -> int:
    """Random (matrix, rows, tile) against the row alone through the smallest tile, outputs poisoned; rows that differ."""
    rng = np.random.default_rng(11)
    torch.manual_seed(11)
    bad: dict[str, int] = {}
    compared = 0
    pool = [(s, *m) for s in shapes for m in matrices(SHAPES[s])]
    for case in range(cases):
        shape, name, n, k, epilogue = pool[case % len(pool)]
        w = weight(2 * n if epilogue is Epilogue.GATED else n, k, 0)
        bm = int(rng.choice(list(CANDIDATES) if name != "head" else [16, 32, 64, 128]))
        low, high = {16: (1, 16), 32: (17, 32), 64: (33, 64), 128: (65, 128), 256: (129, 700)}[bm]
        rows = int(rng.integers(low, high + 1))
        group = [t for t in CANDIDATES[bm] if k % t.bk == 0 and fits(t, epilogue)]
        tile = group[int(rng.integers(len(group)))]
        x = torch.randn(rows, k, device="cuda").bfloat16()
        if epilogue is Epilogue.ADD:
            out = torch.randn(rows, n, device="cuda")
        else:
            dtype = torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32
            out = torch.full((rows, n), float("nan"), dtype=dtype, device="cuda")
        picks = sorted({0, rows - 1, int(rng.integers(rows)), int(rng.integers(rows))})
        alone = [out[i : i + 1].clone() for i in picks]
        linear(x, w, out, epilogue, tile)
        for i, single in zip(picks, alone, strict=True):
            linear(x[i : i + 1], w, single, epilogue, Tile(16, 16, 128, 4, 4))
            compared += 1
            if not torch.equal(single[0], out[i]):
                bad[f"{tile} {epilogue}"] = bad.get(f"{tile} {epilogue}", 0) + 1
    row(f"bits products: {compared} rows of {cases} random cases, {sum(bad.values())} differ")
    for what, count in sorted(bad.items()):
        row(f"  differs {count} times: {what}")
    _WEIGHTS.clear()
    return sum(bad.values())


def poison(program: CudaProgram) -> None:
    held = [*program._buffers._held.values(), program._scratch.top, program._scratch.total, program._scratch.acc]
    for t in held:
        t.fill_(float("nan"))


def bits_program(shape: str, form: str = "bf16", layers: int = 8) -> int:
    """Whole forwards: rows alone and among others, graphs on and off, chunks, trees; rows that differ."""
    config = replace(SHAPES[shape], layers=min(SHAPES[shape].layers, layers))
    wrong = 0
    program = build(config, 512, form=form)
    count = 128
    label = f"{shape} {form}"
    slots = Slots(config, count, 1400)
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 1300, count).tolist()
    tokens = rng.integers(0, config.vocab, count).tolist()

    def run(shares: list[SlotRows], graphs: bool) -> torch.Tensor:
        program.use_graphs = graphs
        poison(program)
        return torch.from_numpy(program.run(pack(shares), slots.base).copy())

    def share(s: int) -> SlotRows:
        return SlotRows(s, lengths[s], [tokens[s]], logits=[0])

    alone = torch.cat([run([share(s)], False) for s in range(count)])
    for size in (1, 2, 4, 8, 16, 32, 64, 128):
        for graphs in (False, True):
            order = rng.permutation(count).tolist()
            bad = 0
            for at in range(0, count, size):
                group = order[at : at + size]
                got = run([share(s) for s in group], graphs)
                bad += sum(not torch.equal(got[i], alone[s]) for i, s in enumerate(group))
            wrong += bad
            row(
                f"bits {label} {config.layers} layers, {size} rows a pass, graphs {'on' if graphs else 'off'}: {bad}/{count} differ"
            )

    # A chunk against its rows read one by one, and joined by decoding rows.
    text = rng.integers(0, config.vocab, 400).tolist()
    start = 200
    one_by_one = torch.cat([run([SlotRows(0, start + i, [text[i]], logits=[0])], True) for i in range(400)])
    chunk = run([SlotRows(0, start, text, logits=range(400))], False)
    bad = sum(not torch.equal(chunk[i], one_by_one[i]) for i in range(400))
    wrong += bad
    row(f"bits {label} chunk of 400 against 400 single rows: {bad}/400 differ")
    others = [share(s) for s in range(1, 9)]
    parts = [run([*others, SlotRows(0, start + a, text[a:b], logits=range(b - a))], True) for a, b in ((0, 17), (17, 150), (150, 151), (151, 400))]  # fmt: skip
    joined = torch.cat([p[8:] for p in parts])
    bad = sum(not torch.equal(joined[i], one_by_one[i]) for i in range(400))
    side = sum(not torch.equal(p[i], alone[i + 1]) for p in parts for i in range(8))
    wrong += bad
    wrong += side
    row(f"bits {label} chunks of 17, 133, 1, 249 beside 8 decoding: {bad}/400 and {side}/32 differ")

    # Trees of random shape: every node equals the chain of its ancestors read one by one.
    bad = nodes = 0
    for trial in range(24):
        size = int(rng.integers(2, 13))
        parents = [-1] + [int(rng.integers(-1, i)) for i in range(1, size)]
        ids = rng.integers(0, config.vocab, size).tolist()
        at = lengths[20 + trial]
        tree = SlotRows(20 + trial, at, ids, parents, logits=range(size))
        got = run([share(1), tree, share(2)], trial % 2 == 1)
        for node in range(size):
            path = [node]
            while parents[path[0]] != -1:
                path.insert(0, parents[path[0]])
            for depth, member in enumerate(path):
                want = run([SlotRows(20 + trial, at + depth, [ids[member]], logits=[0])], True)
            nodes += 1
            bad += not torch.equal(want[0], got[1 + node])
    wrong += bad
    row(f"bits {label} random trees: {bad}/{nodes} nodes differ")
    return wrong


# ---------------------------------------------------------------------------------------------------------- steps


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


def bits_packed(shapes: list[str], cases: int) -> int:
    """Packed weights: unpacking, and the skinny kernel against the large one; rows that differ."""
    rng = np.random.default_rng(5)
    torch.manual_seed(5)
    pool = [m for s in shapes for m in matrices(SHAPES[s]) if m[0] != "head"]
    bad = compared = 0
    for case in range(cases):
        _, n, k, epilogue = pool[case % len(pool)]
        wide = 2 * n if epilogue is Epilogue.GATED else n
        quad = case % 4 != 3
        dtype = torch.float16 if quad or case % 8 == 3 else torch.bfloat16
        dense = torch.empty(wide, k, dtype=dtype, device="cuda").normal_(0, k**-0.5)
        w = random4(wide, k) if quad else pack16(dense)
        if quad:
            unpack_rows(w, dense.fill_(float("nan")))
            if case < 12 and not torch.equal(dense, unpack(w)):
                row(f"unpacking of {wide}x{k} differs from its twin")
        rows = int(rng.integers(1, 700))
        x = torch.randn(rows, k, device="cuda").to(dtype)
        start = torch.randn(rows, n, device="cuda") if epilogue is Epilogue.ADD else torch.full(
            (rows, n), float("nan"), device="cuda", dtype=dtype if epilogue is Epilogue.GATED else torch.float32
        )  # fmt: skip
        large = start.clone()
        linear(x, dense, large, epilogue, segments=w.segments)
        if case < 8:
            want = twins.linear(x, dense, start, epilogue)
            error = (large.float() - want.float()).norm() / want.float().norm()
            if not error < 1e-2:
                row(f"product {wide}x{k} {epilogue} is off by {error:.2e}")
        for size in (1, int(rng.integers(2, 9)), int(rng.integers(9, 17)), int(rng.integers(17, MAX_ROWS + 1))):
            size = min(size, rows)
            at = int(rng.integers(0, rows - size + 1))
            out = start[at : at + size].clone()
            skinny(x[at : at + size], w, out, epilogue, depth=int(rng.choice([2, 4])))
            compared += size
            bad += int((out != large[at : at + size]).any(1).sum())
    row(f"bits packed: {compared} rows of {cases} random cases against the large product, {bad} differ")
    return bad


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

                            def work() -> None:
                                for w in ws:
                                    skinny(
                                        x,
                                        w,
                                        out,
                                        epilogue,
                                        depth,
                                        LaunchMode.CHAINED if dependent else LaunchMode.PLAIN,
                                    )  # noqa: B023

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
                    f"trace {shape} {n} rows {event.key[:50]:50s} {event.count:5d} x {event.device_time_total / event.count:8.2f} us = {event.device_time_total:8.0f}"
                )


def products(shape: str) -> None:
    """The chain of all layers' products alone, ours against cuBLAS, in one graph each."""
    config = SHAPES[shape]
    parts = [m for m in matrices(config) if m[0] != "head"]
    ws = [
        [torch.empty(n * (2 if e is Epilogue.GATED else 1), k, dtype=torch.bfloat16, device="cuda").normal_(0, k**-0.5) for _, n, k, e in parts]
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

        def ours() -> None:
            for layer in ws:
                for w, x, out, (_, _, _, e) in zip(layer, xs, outs, parts, strict=True):
                    linear(x, w, out, e)

        def cublas() -> None:
            for layer in ws:
                for w, x, out in zip(layer, xs, plain, strict=True):
                    torch.mm(x, w.T, out=out)

        a, b = graph_ms(ours), graph_ms(cublas)
        a2, b2 = graph_ms(ours), graph_ms(cublas)
        a, b = min(a, a2), min(b, b2)
        row(
            f"products {shape} {rows} rows: ours {a:.3f} ms = {size / a / 1e9 / read_rate():.3f} of read rate, cuBLAS {b:.3f} ms, speed ratio {b / a:.3f}"
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
        f"prompt {shape} {length} tokens, chunks of {chunk}: {best * 1e3:.0f} ms, {length / best:.0f} tok/s, products {flop / best / 1e12:.0f} TFLOP/s, with attention {(flop + seen) / best / 1e12:.0f}"
    )


# ---------------------------------------------------------------------------------------------------------- pool


class DeviceBytes:
    """Memory at an address as int16 elements, for torch.as_tensor."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,), "typestr": "<i2", "data": (address, False), "version": 2,
        }  # fmt: skip


def at_address(address: int, elements: int) -> torch.Tensor:
    return torch.as_tensor(DeviceBytes(address, elements), device="cuda").view(torch.float16)


def vmm(shapes: list[str]) -> bool:
    """Device pages for real: map and unmap costs, order behind events, a graph over pages committed later; then the
    pool against plain tensors, in bits and in time. Whether all was right."""
    why = supported(0)
    if why is not None:
        row(f"no device pages: {why}")
        return False
    torch.cuda.synchronize()
    driver = CudaDriver(0, torch.cuda.current_stream().cuda_stream)
    stock = PageStock(driver)
    page = stock.page_bytes
    block = CudaRange(1 << 30, stock)
    marks = [time.perf_counter()]
    block.commit(0, page)
    marks.append(time.perf_counter())
    for i in range(1, 33):
        block.commit(i * page, page)
    marks.append(time.perf_counter())
    block.commit(33 * page, 64 * page)
    marks.append(time.perf_counter())
    view = at_address(block.address, 400 * page // 2)
    total = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    first, late = view[: page // 2], view[200 * page // 2 : 201 * page // 2]
    total.copy_(first.float().sum())
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total.copy_(late.float().sum())
    with ThreadPoolExecutor(1) as helper:
        block.commit_ahead(200 * page, page, helper)
        block.commit(200 * page, page)
    late.fill_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    seen = float(total)
    late.fill_(7.0)
    torch.cuda._sleep(200_000_000)
    copy = late.clone()
    block.give_back(200 * page, page)
    early = block.collect()
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    freed = block.collect()
    marks.append(time.perf_counter())
    block.commit(200 * page, page)
    zero = float(late.float().abs().max())
    block.check_integrity()
    block.close()
    stock.trim()
    torch.cuda.synchronize()
    free_before = torch.cuda.mem_get_info()[0]
    block = CudaRange(1 << 30, stock)
    block.commit(0, 256 * page)
    block.close()
    stock.trim()
    leak = free_before - torch.cuda.mem_get_info()[0]
    ok = (
        seen == page / 2
        and early == 0
        and freed == page
        and zero == 0.0
        and bool((copy == 7).all())
        and stock.live == 0
    )
    row(
        f"vmm page {page >> 10} KiB: first {(marks[1] - marks[0]) * 1e6:.0f} us, one by one "
        f"{(marks[2] - marks[1]) / 32 * 1e6:.0f} us, 64 at once {(marks[3] - marks[2]) / 64 * 1e6:.0f} us a page, "
        f"unmap {(marks[5] - marks[4]) * 1e6:.0f} us; graph, events, zeroes {'right' if ok else 'WRONG'}; "
        f"{leak >> 20} MiB not returned"
    )
    for shape in shapes:
        config = replace(SHAPES[shape], layers=min(SHAPES[shape].layers, 16))
        program = build(config, 16)
        plain = Slots(config, 16, 1100)
        layout = llama.kv_layout(config)
        pool = KvPool(layout, [16384] * 16, margin_rows=64, ranges=device_ranges(stock))
        tensors = range(len(layout.tensors))
        for s in range(16):
            pool.commit(s, 1030)
            for t in tensors:
                at_address(pool.base(s, t), 1030 * config.attention.kv_width).copy_(plain.kv[s, t, :1030].flatten())
        pooled = Slots.__new__(Slots)
        pooled.base = np.array([[pool.base(s, t) for t in tensors] for s in range(16)], np.uint64)
        batch = pack([SlotRows(s, 1023, [s + 1], logits=[0]) for s in range(16)])
        program.use_graphs = False
        same = np.array_equal(program.run(batch, plain.base).copy(), program.run(batch, pooled.base))
        times: dict[str, list[float]] = {"plain": [], "pool": []}
        for _ in range(5):
            times["plain"].append(replay_ms(decode_graph(program, plain, 16, 1024, config.vocab), 20))
            times["pool"].append(replay_ms(decode_graph(program, pooled, 16, 1024, config.vocab), 20))
        # Rounds with the window growing by a row each: commits included, against the same rounds on plain tensors.
        program.use_graphs = True
        grown: dict[str, list[float]] = {"plain": [], "pool": []}
        for _ in range(2):
            for name, base in (("plain", plain.base), ("pool", pooled.base)):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for at in range(1024, 1084):
                    if name == "pool":
                        for s in range(16):
                            pool.commit(s, at + 1)
                    program.run(pack([SlotRows(s, at, [s + 1], logits=[0]) for s in range(16)]), base)
                grown[name].append(time.perf_counter() - start)
        pool.check_integrity(deep=True)
        ok &= same
        ratio = statistics.median(times["plain"]) / statistics.median(times["pool"])
        row(
            f"pool {shape} {config.layers} layers, 16 requests: bits {'equal' if same else 'DIFFER'}, plain/pool round time "
            f"{ratio:.3f}, with the window growing {min(grown['plain']) / min(grown['pool']):.3f}"
        )
        pool.close()
        stock.trim()
        del program, plain, pool, pooled
        torch.cuda.empty_cache()
    return ok


# ---------------------------------------------------------------------------------------------------------- model

PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village by the sea,",
    "Water boils at", "The three laws of motion say that", "To make bread you need", "import numpy as np\n",
    "Dear Sir or Madam,",
)  # fmt: skip


def model(path: Path, length: int = 96) -> None:
    """A real model from a file: greedy texts at one slot, and eight at once beside each other's prompts."""
    file = open_gguf(path)
    config = llama_config(file.metadata, file.tensors)
    tokenizer = load_tokenizer(file.metadata)
    runner = CudaRunner(config, file.tensors, device=torch.device("cuda"), max_rows=256, positions=config.context)
    torch.cuda.synchronize()
    stock = PageStock(CudaDriver(0, torch.cuda.current_stream().cuda_stream))
    pool = KvPool(runner.layout, [2048] * 8, margin_rows=64, ranges=device_ranges(stock))
    runner.attach(pool, 8)
    texts = [tokenizer.prompt_ids(p * (1 + 6 * (i % 3))) for i, p in enumerate(PROMPTS)]

    def forward(shares: list[SlotRows]) -> np.ndarray:
        for share in shares:
            pool.commit(share.slot, share.start + len(share.tokens))
        return runner.forward(pack(shares))

    def alone(prompt: list[int]) -> tuple[list[int], float]:
        out = [int(forward([SlotRows(0, 0, prompt, logits=[len(prompt) - 1])])[0].argmax())]
        start = time.perf_counter()
        while len(out) < length:
            at = len(prompt) + len(out) - 1
            out.append(int(forward([SlotRows(0, at, [out[-1]], logits=[0])])[0].argmax()))
        seconds = time.perf_counter() - start
        pool.release(0, 0)
        return out, seconds

    want = [alone(t) for t in texts]
    again = [alone(t) for t in texts]
    # A new request's prompt is read in two chunks beside the others' decoding, one request joining every third round.
    got: list[list[int]] = [[] for _ in texts]
    read = [0] * 8
    rounds = 0
    while any(len(g) < length for g in got):
        shares = []
        for s, prompt in enumerate(texts):
            if rounds < 3 * s or len(got[s]) >= length:
                continue
            if read[s] < len(prompt):
                end = min(len(prompt), read[s] + max(1, len(prompt) // 2))
                shares.append(
                    SlotRows(
                        s, read[s], prompt[read[s] : end], logits=[end - read[s] - 1] if end == len(prompt) else []
                    )
                )
                read[s] = end
            else:
                shares.append(SlotRows(s, len(prompt) + len(got[s]) - 1, [got[s][-1]], logits=[0]))
        if shares:
            choices = iter(forward(shares).argmax(1).tolist())
            for share in shares:
                if share.logits:
                    got[share.slot].append(next(choices))
        rounds += 1
    start = time.perf_counter()
    for at in range(300, 364):
        forward([SlotRows(s, at, [5], logits=[0]) for s in range(8)])
    eight = 8 * 64 / (time.perf_counter() - start)
    equal = sum(g == w[0] for g, w in zip(got, want, strict=True))
    pool.check_integrity(deep=True)
    say(
        "model text: "
        + b"".join(tokenizer.token_bytes(t) for t in want[0][0]).decode(errors="replace").replace("\n", " ")
    )
    row(
        f"model {path.name} on the card: {equal}/8 texts beside others equal the text alone, "
        f"{sum(a[0] == w[0] for a, w in zip(again, want, strict=True))}/8 repeat; one "
        f"{length / min(a[1] for a in again):.0f} tok/s, eight {eight:.0f} tok/s (the host's choice included); "
        f"{runner.backend_reason}"
    )
    pool.close()


# ---------------------------------------------------------------------------------------------------------- main


@contextmanager
def stage(name: str) -> Iterator[None]:
    start = time.time()
    try:
        yield
    except Exception:  # noqa: BLE001 - the other stages' figures are worth having
        row(f"stage {name} FAILED")
        traceback.print_exc()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say(f"-- {name}: {time.time() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+")
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--cases", type=int, default=1200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path, help="a GGUF file for the stage `model`")
    args = parser.parse_args()
    shapes = args.shape or list(SHAPES)
    work: dict[str, Callable[[], None]] = {
        "card": card,
        "vmm": lambda: vmm(shapes),
        "model": lambda: model(args.model),
        "tune": lambda: tune(shapes, args.out),
        "bits": lambda: (
            bits_products(shapes, args.cases),
            [bits_program(s, f) for s in shapes for f in ("bf16", "q4")],
        ),  # type: ignore[func-returns-value]
        "packed": lambda: packed(shapes),
        "step4": lambda: [step(s, "q4") for s in shapes],  # type: ignore[func-returns-value]
        "step": lambda: [step(s) for s in shapes],  # type: ignore[func-returns-value]
        "products": lambda: [products(s) for s in shapes],  # type: ignore[func-returns-value]
        "prompt": lambda: [prompt(s) for s in shapes],  # type: ignore[func-returns-value]
        "trace": lambda: [trace(s) for s in shapes],  # type: ignore[func-returns-value]
    }
    for name in args.stages:
        with stage(name):
            work[name]()
    say("\n".join(["", "== table", *TABLE]))


if __name__ == "__main__":
    main()
