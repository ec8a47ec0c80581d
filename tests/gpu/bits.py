"""Bit checks: random products, packed weights, whole forwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from engine.execution.rows import SlotRows, pack
from engine.execution.runner import sample_all
from kernels.gpu import reference
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.packing import PackedFormat, pack16, unpack
from kernels.gpu.replay import CudaProgram
from kernels.gpu.sampling import Choosing
from kernels.gpu.skinny import MAX_ROWS, skinny, unpack_rows
from kernels.gpu.tiles import PackedTile, Tile
from kernels.gpu.tuning import CANDIDATES, candidates, fits
from kernels.sampling import SamplingSpec
from tests.gpu.setting import (
    SHAPES,
    ShapeForm,
    Slots,
    build,
    forget_weights,
    matrices,
    random_packed,
    row,
    weight,
)
from tests.support.sampling_specs import random_draw


def bits_products(shapes: list[str], cases: int) -> int:
    """Random (matrix, rows, tile) against the row alone in the smallest tile, outputs poisoned; rows that differ."""
    rng = np.random.default_rng(11)
    torch.manual_seed(11)
    bad: dict[str, int] = {}
    compared = 0
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    pool = [(s, *m) for s in shapes for m in matrices(SHAPES[s])]
    for case in range(cases):
        _, name, n, k, epilogue = pool[case % len(pool)]
        w = weight(2 * n if epilogue is Epilogue.GATED else n, k, 0)
        bm = int(rng.choice(list(CANDIDATES) if name != "head" else [16, 32, 64, 128]))
        low, high = {16: (1, 16), 32: (17, 32), 64: (33, 64), 128: (65, 128), 512: (129, 700)}[bm]
        rows = int(rng.integers(low, high + 1))
        group = [t for t in candidates(bm, n, processors) if k % t.bk == 0 and fits(t, epilogue)]
        tile = group[int(rng.integers(len(group)))]
        x = torch.randn(rows, k, device="cuda").bfloat16()
        if epilogue is Epilogue.ADD:
            out = torch.randn(rows, n, device="cuda")
        else:
            dtype = torch.bfloat16 if epilogue is Epilogue.GATED else torch.float32
            out = torch.full((rows, n), float("nan"), dtype=dtype, device="cuda")
        picks = sorted({0, rows - 1, int(rng.integers(rows)), int(rng.integers(rows))})
        alone = [out[i : i + 1].clone() for i in picks]
        linear(x, w, out, epilogue, tile=tile)
        for i, single in zip(picks, alone, strict=True):
            linear(x[i : i + 1], w, single, epilogue, tile=Tile(16, 16, 128, 4, 4))
            compared += 1
            if not torch.equal(single[0], out[i]):
                bad[f"{tile} {epilogue}"] = bad.get(f"{tile} {epilogue}", 0) + 1
    row(f"bits products: {compared} rows of {cases} random cases, {sum(bad.values())} differ")
    for what, count in sorted(bad.items()):
        row(f"  differs {count} times: {what}")
    forget_weights()
    return sum(bad.values())


def poison(program: CudaProgram) -> None:
    held = [*program._buffers._held.values(), program._scratch.top, program._scratch.total, program._scratch.acc]
    for t in held:
        t.fill_(float("nan"))


def bits_program(shape: str, form: str = "bf16", layers: int = 8) -> int:
    """Whole forwards: rows alone and among others, graphs on and off, chunks, trees; rows that differ."""
    config = replace(SHAPES[shape], layers=min(SHAPES[shape].layers, layers))
    wrong = 0
    program = build(config, 512, form=ShapeForm(form))
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
                f"bits {label} {config.layers} layers, {size} rows a pass, graphs {'on' if graphs else 'off'}: "
                f"{bad}/{count} differ"
            )

    # Every mode of launching, whichever one serves.
    served = program.mode
    for mode in LaunchMode:
        program.mode = mode
        bad = 0
        for size in (1, 8):
            for at in range(0, 24, size):
                got = run([share(s) for s in range(at, at + size)], graphs=at >= 8)
                bad += sum(not torch.equal(got[i], alone[at + i]) for i in range(size))
        wrong += bad
        row(f"bits {label} launched {mode}, passes of 1 and 8 rows, eager, captured, replayed: {bad}/48 differ")
    program.mode = served

    # Draws on the device, eager, captured, replayed, beside a row whose logits are asked for: the host's tokens.
    program.use_graphs = True
    bad = 0
    host = alone[:16].cpu().numpy()
    for kind in Choosing:
        draws: list[SamplingSpec | None] = [*(random_draw(rng, kind) for _ in range(15)), None]
        want = sample_all(host, draws)
        for _ in range(3):
            got = program.run_and_sample(pack([share(s) for s in range(16)]), slots.base, draws)
            bad += sum(not np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    wrong += bad
    row(f"bits {label} greedy, plain and cut draws on the device, three passes of 16 rows each: {bad}/144 differ")

    # A chunk against its rows read one by one, and joined by decoding rows.
    text = rng.integers(0, config.vocab, 400).tolist()
    start = 200
    one_by_one = torch.cat([run([SlotRows(0, start + i, [text[i]], logits=[0])], True) for i in range(400)])
    chunk = run([SlotRows(0, start, text, logits=range(400))], False)
    bad = sum(not torch.equal(chunk[i], one_by_one[i]) for i in range(400))
    wrong += bad
    row(f"bits {label} chunk of 400 against 400 single rows: {bad}/400 differ")
    others = [share(s) for s in range(1, 9)]
    parts = [
        run([*others, SlotRows(0, start + a, text[a:b], logits=range(b - a))], True)
        for a, b in pairwise((0, 17, 150, 151, 400))
    ]
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


FORMS = (PackedFormat.Q4, PackedFormat.Q8, PackedFormat.FP8, PackedFormat.NVFP4, PackedFormat.DENSE)


def bits_packed(shapes: list[str], cases: int) -> int:
    """Packed weights: unpacking against its reference, and the skinny kernel in random tiles and row counts against the
    large one; rows that differ."""
    rng = np.random.default_rng(5)
    torch.manual_seed(5)
    pool = [m for s in shapes for m in matrices(SHAPES[s]) if m[0] != "head"]
    bad = compared = wrong = 0
    for case in range(cases):
        _, n, k, epilogue = pool[case // len(FORMS) % len(pool)]
        form = FORMS[case % len(FORMS)]
        wide = 2 * n if epilogue is Epilogue.GATED else n
        dtype = torch.bfloat16 if form is PackedFormat.DENSE and case % 2 else torch.float16
        dense = torch.empty(wide, k, dtype=dtype, device="cuda").normal_(0, k**-0.5)
        w = pack16(dense) if form is PackedFormat.DENSE else random_packed(form, wide, k)
        if form is not PackedFormat.DENSE:
            unpack_rows(w, dense.fill_(float("nan")))
            if case < 3 * len(FORMS) and not torch.equal(dense, unpack(w)):
                wrong += 1
                row(f"unpacking of {form} {wide}x{k} differs from its reference")
        rows = int(rng.integers(1, 700))
        x = torch.randn(rows, k, device="cuda").to(dtype)
        start = torch.randn(rows, n, device="cuda") if epilogue is Epilogue.ADD else torch.full(
            (rows, n), float("nan"), device="cuda", dtype=dtype if epilogue is Epilogue.GATED else torch.float32
        )  # fmt: skip
        large = start.clone()
        linear(x, dense, large, epilogue, segments=w.segments, alpha=w.alpha)
        if case < 4 * len(FORMS):
            want = reference.linear(x, dense, start, epilogue, w.alpha)
            error = (large.float() - want.float()).norm() / want.float().norm()
            if not error < 1e-2:
                wrong += 1
                row(f"product {form} {wide}x{k} {epilogue} is off by {error:.2e}")
        parts = 2 if epilogue is Epilogue.GATED else 1
        for low, high in ((1, 1), (2, 8), (9, 16), (17, 32), (33, MAX_ROWS)):
            size = min(int(rng.integers(low, high + 1)), rows)
            at = int(rng.integers(0, rows - size + 1))
            out = start[at : at + size].clone()
            tile = PackedTile(parts * int(rng.integers(1, 3)), int(rng.integers(2, 4))) if case % 3 == 0 else None
            skinny(x[at : at + size], w, out, epilogue, tile=tile)
            compared += size
            differ = int((out != large[at : at + size]).any(1).sum())
            if differ and bad < 20:
                row(f"  {form} {wide}x{k} {epilogue} {size} rows {tile}: {differ} differ")
            bad += differ
    row(f"bits packed: {compared} rows of {cases} random cases against the large product, {bad} differ, {wrong} wrong")
    return bad + wrong
