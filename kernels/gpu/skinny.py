"""Products of a few rows with packed weights, in CUDA C++.

The arithmetic is that of the unpacked weights: values in float16 as `packing` describes them, the products along K in
`segments` runs, each in order, added in order, times alpha. `linear` with as many segments gives the same bits from
what `unpack_rows` leaves, and serves batches of more rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from kernels.gpu import nvrtc
from kernels.gpu.launch import LaunchMode, default_mode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.packing import TILE, Packed, PackedFormat, unpack
from kernels.gpu.tile_cache import packed_tile_for
from kernels.gpu.tiles import PackedTile

MAX_ROWS = 64
SOURCE = Path(__file__).with_name("skinny.cu")
_MODES = {LaunchMode.PLAIN: 0, LaunchMode.CHAINED: 1}
_EPILOGUES = {Epilogue.STORE: 0, Epilogue.ADD: 1, Epilogue.GATED: 2}
_FORMS = {form: number for number, form in enumerate(PackedFormat)}
_STEP_BYTES = {
    PackedFormat.DENSE: 2048,
    PackedFormat.Q4: 512 + 128,
    PackedFormat.Q8: 1024 + 64,
    PackedFormat.Q8_MIN: 1024 + 128,
    PackedFormat.Q8_SHORT: 1024 + 128,
    PackedFormat.FP8: 1024 + 4,
    PackedFormat.NVFP4: 512 + 64,
}
"""Bytes of a tile's step, scales included."""

Defines = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Device:
    """What of a GPU decides how products are launched: its name, multiprocessors, and the bytes of shared memory that
    a block may ask for."""

    name: str
    processors: int
    shared: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the kernel: what it is compiled with, blocks, a block's threads and its shared memory in bytes."""

    defines: Defines
    grid: int
    threads: int
    shared: int


@cache
def device_of(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    return Device(
        properties.name,
        properties.multi_processor_count,
        nvrtc.shared_limit(index) - nvrtc.STATIC_SHARED,
    )


@cache
def plan(
    *,
    form: PackedFormat,
    segments: int,
    n: int,
    k: int,
    rows: int,
    epilogue: Epilogue,
    dtype: torch.dtype,
    mode: LaunchMode,
    device: Device,
    tile: PackedTile | None = None,
) -> Launch | None:
    """How to compute `rows` rows with weights of `n` finished outputs; None where that many rows do not fit the GPU's
    shared memory. `tile` overrides the measured or computed one."""
    eights = 1 if rows <= 8 else 2 if rows <= 16 else 4 if rows <= 32 else 8
    parts = 2 if epilogue is Epilogue.GATED else 1
    if tile is None:
        tile = packed_tile_for(device.name, rows, n, k, f"{form}-{epilogue}")
    if tile is None:
        tile = _computed_tile(form=form, segments=segments, n=n, k=k, eights=eights, parts=parts, device=device)
    if tile is None:
        return None
    ring = _ring(form, segments, eights, tile)
    sums = parts * segments * eights * 8 * (tile.tiles // parts * TILE + 4) * 4
    shared = max(ring, sums)
    if shared > device.shared:
        return None
    # A cap on registers that lets as many blocks run at once as shared memory does.
    blocks = 1 if eights > 2 else max(1, min(512 // (segments * 32), device.shared // shared))
    defines = (
        ("SKINNY", 1),
        ("FORM", _FORMS[form]),
        ("TYPE_BF16", int(dtype is torch.bfloat16)),
        ("NT", eights),
        ("TILES", tile.tiles),
        ("EPILOGUE", _EPILOGUES[epilogue]),
        ("SEGMENTS", segments),
        ("DEPTH", tile.depth),
        ("BLOCKS", blocks),
        ("HAS_ALPHA", int(form is not PackedFormat.DENSE)),
        ("MODE", _MODES[mode]),
    )
    grid = -(-n // (tile.tiles // parts * TILE))
    return Launch(defines, grid, segments * 32, shared)


def _ring(form: PackedFormat, segments: int, eights: int, tile: PackedTile) -> int:
    slot = -(-tile.tiles * _STEP_BYTES[form] // 128) * 128 + eights * 1024
    return segments * tile.depth * slot


def _computed_tile(
    *, form: PackedFormat, segments: int, n: int, k: int, eights: int, parts: int, device: Device
) -> PackedTile | None:
    """The tile whose blocks fill the multiprocessors best, the largest among equals since its tiles share x; as deep as
    leaves room for the next kernel's blocks, which read their weights early."""
    tiles = n // TILE
    best: tuple[float, PackedTile] | None = None
    for group in range(1, (2 if eights == 8 else 4) // parts + 1):
        blocks = -(-tiles // group)
        waves = -(-blocks // device.processors)
        full = min(1.0, blocks / (waves * device.processors))
        if waves > 8:
            full = 1.0
        share = (2 if segments == 8 else 3) if eights <= 2 else (1 if segments == 8 else 2)
        most = min(8, max(2, k // 64 // segments + 1))
        rings = {d: _ring(form, segments, eights, PackedTile(group * parts, d)) for d in range(2, most + 1)}
        # Fewer than three steps in a ring leave too little on its way, even where a neighbour then finds no room.
        depth = max((d for d in rings if rings[d] <= device.shared // share), default=2)
        depth = max((d for d in rings if d <= 3 and rings[d] <= device.shared), default=2) if depth < 3 else depth
        tile = PackedTile(group * parts, depth)
        if _ring(form, segments, eights, tile) <= device.shared and (best is None or full >= best[0]):
            best = full, tile
    return best[1] if best is not None else None


def packed_candidates(w: Packed, n: int, rows: int, epilogue: Epilogue, device: Device) -> list[PackedTile]:
    """Tiles worth measuring for a product of `n` finished outputs on this GPU."""
    parts = 2 if epilogue is Epilogue.GATED else 1
    tiles = [PackedTile(group * parts, depth) for group in range(1, 4 // parts + 1) for depth in (2, 3, 4, 6, 8)]
    launch_of = partial(
        plan,
        form=w.format,
        segments=w.segments,
        n=n,
        k=w.k,
        rows=rows,
        epilogue=epilogue,
        dtype=torch.float16,
        mode=LaunchMode.CHAINED,
        device=device,
    )
    return [tile for tile in tiles if launch_of(tile=tile) is not None]


def skinny(
    x: torch.Tensor,
    w: Packed,
    out: torch.Tensor,
    epilogue: Epilogue,
    *,
    tile: PackedTile | None = None,
    mode: LaunchMode | None = None,
) -> None:
    """out = epilogue((x @ w.T) * alpha) for up to MAX_ROWS rows.

    x: (rows, k) float16, or bf16 for dense weights of that type, contiguous along k. out: (rows, n), float32, or x's
    type for GATED, whose weights hold n gate rows and then n up rows.
    """
    rows, k = x.shape
    n = out.shape[1]
    gated = epilogue is Epilogue.GATED
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"{rows} rows; 1 to {MAX_ROWS} are possible")
    if w.k != k or w.n != (2 * n if gated else n) or x.stride(1) != 1 or out.stride(1) != 1 or n % TILE:
        raise ValueError(f"x {tuple(x.shape)}, w ({w.n}, {w.k}) and out {tuple(out.shape)} do not fit")
    if out.dtype is not (x.dtype if gated else torch.float32):
        raise ValueError(f"out is {out.dtype} for {epilogue} of {x.dtype}")
    if x.device.type != "cuda":
        linear(x, unpack(w), out, epilogue, segments=w.segments, alpha=w.alpha)
        return
    mode = mode if mode is not None else default_mode(x.device)
    launch = plan(
        form=w.format,
        segments=w.segments,
        n=n,
        k=k,
        rows=rows,
        epilogue=epilogue,
        dtype=x.dtype,
        mode=mode,
        device=device_of(x.device.index or 0),
        tile=tile,
    )
    if launch is None:
        if rows == 1:
            raise ValueError(f"weights of ({w.n}, {w.k}) in {w.format} do not fit this GPU's shared memory")
        upper = 8 if rows <= 16 else 16 if rows <= 32 else 32
        skinny(x[:upper], w, out[:upper], epilogue, tile=tile, mode=mode)
        skinny(x[upper:], w, out[upper:], epilogue, tile=tile, mode=mode)
        return
    kernel = nvrtc.load(SOURCE, "skinny", launch.defines, torch.cuda.get_device_capability(x.device))
    scales, alpha = (t if t is not None else w.words for t in (w.scales, w.alpha))
    arguments = (w.words, scales, alpha, x, out, rows, n, k, x.stride(0), out.stride(0))
    kernel.launch(launch.grid, launch.threads, arguments, shared=launch.shared)


def unpack_defines(form: PackedFormat, mode: LaunchMode) -> Defines:
    """What the unpacking kernel is compiled with."""
    fixed = (("TYPE_BF16", 0), ("NT", 1), ("TILES", 1), ("EPILOGUE", 0), ("SEGMENTS", 4), ("DEPTH", 2), ("BLOCKS", 1))
    return (("FORM", _FORMS[form]), *fixed, ("HAS_ALPHA", 0), ("MODE", _MODES[mode]))


def unpack_rows(w: Packed, out: torch.Tensor, mode: LaunchMode | None = None) -> None:
    """Unpack weights to out, (n, k) float16 contiguous, on the device: the values before alpha."""
    if w.scales is None or out.shape != (w.n, w.k) or out.dtype is not torch.float16 or not out.is_contiguous():
        raise ValueError(f"out {tuple(out.shape)} {out.dtype} cannot take {w.format} weights ({w.n}, {w.k})")
    if out.device.type != "cuda":
        out.copy_(unpack(w))
        return
    mode = mode if mode is not None else default_mode(out.device)
    defines = unpack_defines(w.format, mode)
    kernel = nvrtc.load(SOURCE, "unpack_rows", defines, torch.cuda.get_device_capability(out.device))
    kernel.launch(2048, 256, (w.words, w.scales, out, w.n // TILE, w.k))
