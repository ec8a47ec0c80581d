"""The first packed kernel, a tile a block: kept to measure the one in use against it, in pairs.

4-bit groups of 32 with scale and minimum, or 16 bits.

The arithmetic is that of the unpacked weights: value = quant * scale + minimum rounded to float16, then the products
along K in `segments` runs, each in order, added in order. `linear` with as many segments gives the same bits from
`unpack`, and serves passes of more rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.gpu import nvrtc
from kernels.gpu.launch import LaunchMode, default_mode
from kernels.gpu.linear import Epilogue

MAX_ROWS = 32
_SOURCE = Path(__file__).with_name("first_skinny.cu")
_MODES = {LaunchMode.PLAIN: 0, LaunchMode.EARLY: 1, LaunchMode.CHAINED: 2}
_EPILOGUES = {Epilogue.STORE: 0, Epilogue.ADD: 1, Epilogue.GATED: 2}


@dataclass(frozen=True, slots=True)
class FirstPacked:
    """Weights (n, k) in the order of the matrix instruction's registers. `words`, int32, holds 16-row tiles of steps of
    lanes' words. `scales`, for 4-bit weights, is float16 (n / 16, k / 64, 8, 2, 2, 2): row, group, row half, scale or
    minimum."""

    words: torch.Tensor
    scales: torch.Tensor | None
    n: int
    k: int

    @property
    def segments(self) -> int:
        """Runs that K is split into. Fixed by the shape: with few outputs, more of K must be read at once."""
        return 8 if self.n <= 8192 and self.k >= 2048 else 4

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + (self.scales.nbytes if self.scales is not None else 0)


def first_skinny(
    x: torch.Tensor,
    w: FirstPacked,
    out: torch.Tensor,
    epilogue: Epilogue,
    depth: int | None = None,
    mode: LaunchMode | None = None,
) -> None:
    """out = epilogue(x @ w.T) for up to MAX_ROWS rows.

    x: (rows, k) float16, or bf16 for 16-bit weights of that type, contiguous along k. out: (rows, n), float32, or x's
    type for GATED, whose weights hold n gate rows and then n up rows. `depth` steps of weights are in flight a warp.
    """
    rows, k = x.shape
    n = out.shape[1]
    gated = epilogue is Epilogue.GATED
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"{rows} rows; 1 to {MAX_ROWS} are possible")
    if w.k != k or w.n != (2 * n if gated else n) or x.stride(1) != 1 or out.stride(1) != 1 or n % 16:
        raise ValueError(f"x {tuple(x.shape)}, w ({w.n}, {w.k}) and out {tuple(out.shape)} do not fit")
    if out.dtype is not (x.dtype if gated else torch.float32):
        raise ValueError(f"out is {out.dtype} for {epilogue} of {x.dtype}")
    eights = 1 if rows <= 8 else 2 if rows <= 16 else 4
    mode = mode if mode is not None else default_mode(x.device)
    waves = n // 16 / torch.cuda.get_device_properties(x.device).multi_processor_count
    if depth is None:
        depth = 2 if eights == 4 or waves > 3 else 3 if waves > 2 else 4
    # A grid a little over one wave costs nearly two: make room for all of it where registers allow.
    blocks = 6 if gated and w.scales is not None and eights == 1 and depth == 2 else 1
    parts = 2 if gated else 1
    ring = w.segments * depth * eights * 8 * 144
    sums = parts * w.segments * eights * 8 * 17 * 4
    kernel = nvrtc.load(
        _SOURCE,
        "skinny",
        (
            ("FORM_Q4", int(w.scales is not None)),
            ("TYPE_BF16", int(x.dtype is torch.bfloat16)),
            ("NT", eights),
            ("EPILOGUE", _EPILOGUES[epilogue]),
            ("SEGMENTS", w.segments),
            ("DEPTH", depth),
            ("BLOCKS", blocks),
            ("MODE", _MODES[mode]),
        ),
        torch.cuda.get_device_capability(x.device),
    )
    scales = w.scales if w.scales is not None else w.words
    arguments = (w.words, scales, x, out, rows, n, k, x.stride(0), out.stride(0))
    kernel.launch(n // 16, w.segments * 32, arguments, shared=max(ring, sums))
