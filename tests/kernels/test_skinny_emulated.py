"""The packed product's CUDA C++ on the host: formats, epilogues, row buckets and ring depths against the reference."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from kernels.gpu import reference
from kernels.gpu.launch import LaunchMode
from kernels.gpu.linear import Epilogue
from kernels.gpu.packing import Packed, PackedFormat, unpack
from kernels.gpu.skinny import SOURCE, Defines, Device, plan, unpack_defines
from kernels.gpu.tiles import PackedTile
from tests.kernels.packed_weights import random_packed

HERE = Path(__file__).parent
GPU = Device("emulated", 4, 200_000)


@cache
def _float16() -> bool:
    """Whether a C++ compiler here knows float16."""
    compiler = shutil.which("g++")
    if compiler is None:
        return False
    probe = [compiler, "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(probe, input=b"_Float16 x;", capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _float16(), reason="no C++ compiler that knows float16")


def library(folder: Path, defines: Defines) -> ctypes.CDLL:
    path = folder / "skinny.so"
    flags = [f"-D{name}={value}" for name, value in defines] + [f'-DSOURCE="{SOURCE}"', "-std=c++17", "-w", "-O0"]
    subprocess.run(["g++", *flags, "-shared", "-fPIC", str(HERE / "emulated_skinny.cpp"), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def address(t: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(0 if t is None else t.data_ptr())


def run(folder: Path, x: torch.Tensor, w: Packed, out: torch.Tensor, epilogue: Epilogue, tile: PackedTile) -> None:
    rows, k = x.shape
    n = out.shape[1]
    launch = plan(
        form=w.format,
        segments=w.segments,
        n=n,
        k=k,
        rows=rows,
        epilogue=epilogue,
        dtype=x.dtype,
        mode=LaunchMode.CHAINED,
        device=GPU,
        tile=tile,
    )
    assert launch is not None
    assert launch.shared <= GPU.shared
    sizes = (rows, n, k, x.stride(0), out.stride(0))
    run_ = library(folder, launch.defines).run
    run_(launch.grid, *map(address, (w.words, w.scales, w.alpha, x, out)), *map(ctypes.c_int, sizes))


CASES = [
    (PackedFormat.Q4, 1, Epilogue.STORE, PackedTile(3, 3)),
    (PackedFormat.Q8_MIN, 19, Epilogue.ADD, PackedTile(2, 4)),
    (PackedFormat.FP8, 9, Epilogue.GATED, PackedTile(4, 2)),
]


@pytest.mark.parametrize(("form", "rows", "epilogue", "tile"), CASES)
def test_products(tmp_path: Path, form: PackedFormat, rows: int, epilogue: Epilogue, tile: PackedTile) -> None:
    n, k = 48, 448  # 3 tiles, 7 steps over 4 warps: nothing divides
    wide = 2 * n if epilogue is Epilogue.GATED else n
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(rows, k + 8, generator=generator) * 0.01).half()[:, :k]
    w = random_packed(form, wide, k, generator)
    dense = unpack(w)
    start = torch.randn(rows, n + 4, generator=generator)
    if epilogue is not Epilogue.ADD:
        start.fill_(float("nan"))
    out = start.half() if epilogue is Epilogue.GATED else start.clone()
    want = reference.linear(x, dense, out[:, :n].clone(), epilogue, w.alpha)
    run(tmp_path, x, w, out[:, :n], epilogue, tile)
    error = (out[:, :n].float() - want.float()).norm() / want.float().norm()
    assert error < (1e-3 if epilogue is Epilogue.GATED else 1e-5)
    assert torch.equal(out[:, n:].isnan(), start[:, n:].isnan())


@pytest.mark.parametrize("form", [PackedFormat.Q8_SHORT, PackedFormat.NVFP4])
def test_unpacking_is_the_twins_to_the_bit(tmp_path: Path, form: PackedFormat) -> None:
    n, k = 144, 192
    w = random_packed(form, n, k, torch.Generator().manual_seed(4))
    out = torch.full((n, k), float("nan"), dtype=torch.float16)
    unpacked = library(tmp_path, unpack_defines(form, LaunchMode.PLAIN)).run
    unpacked(3, *map(address, (w.words, w.scales, out)), ctypes.c_int(n // 16), ctypes.c_int(k))
    assert torch.equal(out.view(torch.int16), unpack(w).view(torch.int16))
