"""Figures and bit checks of the CUDA engine on one GPU.

    python tests/gpu/bench_gpu.py gpu tune bits step prompt [--shape qwen3-8b] [--out DIR]

Stages run in the order given; `tune` leaves its tiles to the stages after it. A short table comes last.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels.gpu.tiles import CLASSES
from tests.gpu.beside import beside
from tests.gpu.bits import bits_packed, bits_products, bits_program
from tests.gpu.chunks import chunks
from tests.gpu.drawing import drawing
from tests.gpu.pool import pool_against_plain
from tests.gpu.prompts import prompt
from tests.gpu.rates import ahead, gpu, packed, products, step, trace, tune_packed
from tests.gpu.real import model, vmm
from tests.gpu.service import service
from tests.gpu.setting import SHAPES, TABLE, ShapeForm, row, say
from tests.gpu.tuning import precompile, tune, wanted


@contextmanager
def stage(name: str) -> Iterator[None]:
    start = time.time()
    try:
        yield
    except Exception:  # noqa: BLE001 - the other stages' figures are worth having
        row(f"stage {name} FAILED")
        traceback.print_exc()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    say(f"-- {name}: {time.time() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+")
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--cases", type=int, default=1200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--form", action="append", choices=[*ShapeForm, "packed16"])
    parser.add_argument("--rows", default="1,2,4,8,16", help="requests of the stage `steps`")
    parser.add_argument("--classes", default=",".join(map(str, CLASSES)), help="row classes of the stage `tune`")
    parser.add_argument("--chunks", default="2048,512", help="rows of a chunk in the stage `prompt`")
    parser.add_argument("--layers", type=int, default=8, help="layers of the stage `bitsof`")
    parser.add_argument("--model", type=Path, help="a GGUF file for the stages `model` and `service`")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="where `service` runs: cpu tries it out"
    )
    args = parser.parse_args()
    shapes = args.shape or list(SHAPES)
    forms = tuple(args.form or ("bf16", "q4", "q8", "fp8", "nvfp4"))
    quantised = tuple(f for f in forms if f not in ("bf16", "packed16"))
    rows = tuple(int(word) for word in args.rows.split(","))
    work: dict[str, Callable[[], object]] = {
        "gpu": gpu,
        "draws": drawing,
        "beside": lambda: [beside(shape) for shape in shapes],  # type: ignore[func-returns-value]
        "attention": lambda: [chunks(shape) for shape in shapes],  # type: ignore[func-returns-value]
        "vmm": vmm,
        "pool": lambda: pool_against_plain(shapes),
        "service": lambda: service(args.model, args.device),
        "model": lambda: model(args.model),
        "tune": lambda: tune(shapes, args.out, tuple(int(word) for word in args.classes.split(","))),
        "bits": lambda: (
            precompile(wanted(shapes, CLASSES)),
            bits_products(shapes, args.cases),
            [bits_program(s, f) for s in shapes for f in ("bf16", "q4")],
        ),  # type: ignore[func-returns-value]
        "bitspacked": lambda: bits_packed(shapes, args.cases),
        "bitsof": lambda: [bits_program(s, f, args.layers) for s in shapes for f in forms],  # type: ignore[func-returns-value]
        "packed": lambda: packed(shapes, quantised),
        "tunepacked": lambda: tune_packed(shapes, quantised),
        "steps": lambda: [step(s, f, rows=rows) for s in shapes for f in forms],  # type: ignore[func-returns-value]
        "step4": lambda: [step(s, "q4") for s in shapes],  # type: ignore[func-returns-value]
        "step": lambda: [step(s) for s in shapes],  # type: ignore[func-returns-value]
        "ahead": lambda: [ahead(s) for s in shapes],  # type: ignore[func-returns-value]
        "products": lambda: [products(s) for s in shapes],  # type: ignore[func-returns-value]
        "prompt": lambda: [
            prompt(s, int(c), f) for s in shapes for f in args.form or ("bf16",) for c in args.chunks.split(",")
        ],  # type: ignore[func-returns-value]
        "trace": lambda: [trace(s) for s in shapes],  # type: ignore[func-returns-value]
    }
    for name in args.stages:
        with stage(name):
            work[name]()
    say("\n".join(["", "== table", *TABLE]))


if __name__ == "__main__":
    main()
