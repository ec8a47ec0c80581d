"""Weights packed for the matrix instruction's registers: forms, packing, and the inverse.

A tile is 16 outputs; a step is 64 inputs of a tile, a half 32, a block 16. Lane 4 r + q of a warp multiplies rows r and
r + 8 at columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of a block: eight values, which lie in its words in the order of the
instruction's four registers (row r, row r + 8, then both again eight columns on).

Products are taken with values in float16, made so that unpacking them costs few instructions; `alpha`, one float32 an
output, multiplies the finished sum and brings them to the weights' size.

| form | a value in float16 | bits a weight |
|---|---|---|
| q4 | quant (0 to 15) * scale + minimum, rounded once; groups of 32 | 5 |
| q8 | (byte - 128) * scale, rounded once; groups of 32 | 8.5 |
| q8min | byte * scale + minimum, rounded once; groups of 32 | 9 |
| q8short | (byte - 128) * scale, rounded once; groups of 16 | 9 |
| fp8 | e4m3 * scale, rounded once; blocks of 128 by 128, scale in float16 | 8.03 |
| nvfp4 | e2m1 * scale, exact; groups of 16, scale in e4m3 | 4.5 |
| dense | 16 bits as they are | 16 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

TILE, STEP, BLOCK = 16, 64, 16
FP8_BLOCK = 128


class PackedFormat(StrEnum):
    """How packed weights lie in memory; the table above says what each means."""

    DENSE = "dense"
    Q4 = "q4"
    Q8 = "q8"
    Q8_MIN = "q8min"
    Q8_SHORT = "q8short"
    FP8 = "fp8"
    NVFP4 = "nvfp4"

    @property
    def label(self) -> str:
        """The form in words, for `/health`."""
        return _LABELS[self]


_LABELS = {
    PackedFormat.DENSE: "16-bit",
    PackedFormat.Q4: "4-bit, groups of 32, scale and minimum in float16",
    PackedFormat.Q8: "8-bit, groups of 32, scale in float16",
    PackedFormat.Q8_MIN: "8-bit, groups of 32, scale and minimum in float16",
    PackedFormat.Q8_SHORT: "8-bit, groups of 16, scale in float16",
    PackedFormat.FP8: "8-bit floats (e4m3), blocks of 128 by 128, scale in float16",
    PackedFormat.NVFP4: "4-bit floats (e2m1), groups of 16, scale in e4m3",
}

Q4_LOW, Q4_HIGH, Q8_SHIFT = 2.0**18, 2.0**22, 2.0**24
"""A quant is left where it lies in its word and read as a subnormal float16, so its scale is stored times this: for
rows r and r + 8 of 4-bit weights, and for 8-bit ones."""
NVFP4_SHIFT = 2.0**14
"""An e2m1 value's bits, moved into a float16's place, are the value over this; `alpha` has it."""
_LARGEST_SCALE = {
    PackedFormat.Q4: 2.0**-7,
    PackedFormat.Q8: 2.0**-9,
    PackedFormat.Q8_MIN: 2.0**-9,
    PackedFormat.Q8_SHORT: 2.0**-9,
    PackedFormat.FP8: 2.0**3,
}
_LARGEST_MINIMUM = 2.0**10
"""Scales are brought below this by a power of two an output, so that what is stored and the values stay in float16."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights (n, k), packed. `words` is int32 (tiles, steps, words of a tile's step); `scales` are bytes (tiles,
    steps, bytes of a tile's step), None for dense ones; `alpha` is float32 (n,), None for ones."""

    format: PackedFormat
    words: torch.Tensor
    scales: torch.Tensor | None
    alpha: torch.Tensor | None
    n: int
    k: int

    @property
    def segments(self) -> int:
        """Runs that K is split into. Fixed by the shape: with few outputs, more of K must be read at once."""
        return 8 if self.n <= 8192 and self.k >= 2048 else 4

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.words, self.scales, self.alpha) if t is not None)


def packable(n: int, k: int) -> bool:
    """Whether a matrix of this shape can be packed."""
    return n % TILE == 0 and k % STEP == 0


def pack4(quants: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> Packed:
    """quants: (n, k) uint8 of 0 to 15. scale, minimum: (n, k / 32) float."""
    n, k = _shape(quants)
    a, b, c, d = _registers(quants.to(torch.int32))
    half = a << 6 | b << 2 | (c & 3) << 14 | c >> 2 | d << 10
    words = (half[..., 0] | half[..., 1] << 16).reshape(n // TILE, k // STEP, 2, 2, 32).transpose(3, 4)
    scale, low, alpha = _normalised(PackedFormat.Q4, scale, minimum)
    assert low is not None
    shift = torch.where(torch.arange(n, device=scale.device) % TILE < 8, Q4_LOW, Q4_HIGH)[:, None]
    pair = torch.stack((scale * shift, low), dim=-1)
    return Packed(PackedFormat.Q4, _words(words, n, k), _scales(pair.half(), n, k), alpha, n, k)


def pack8(values: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor | None = None) -> Packed:
    """values: (n, k) int8, or uint8 where there is a `minimum`. scale, minimum: (n, k / 32) float; without a minimum
    also (n, k / 16)."""
    n, k = _shape(values)
    if minimum is not None:
        form, codes = PackedFormat.Q8_MIN, values.to(torch.int32)
    else:
        form = PackedFormat.Q8 if scale.shape[1] == k // 32 else PackedFormat.Q8_SHORT
        codes = values.to(torch.int32) + 128
    a, b, c, d = _registers(codes)
    first = a[..., 0] | b[..., 0] << 8 | a[..., 1] << 16 | b[..., 1] << 24
    second = c[..., 0] | d[..., 0] << 8 | c[..., 1] << 16 | d[..., 1] << 24
    scale, minimum, alpha = _normalised(form, scale, minimum)
    stored = scale * Q8_SHIFT
    if minimum is not None:
        packed = _scales(torch.stack((stored, minimum), dim=-1).half(), n, k)
    else:
        packed = _scales(stored.half()[..., None], n, k)
    return Packed(form, _words(_pair(first, second, n, k), n, k), packed, alpha, n, k)


def pack_fp8(weights: torch.Tensor, scale: torch.Tensor) -> Packed:
    """weights: (n, k) float8_e4m3fn. scale: (ceil(n / 128), ceil(k / 128)) float32."""
    n, k = _shape(weights)
    rows, _, alpha = _normalised(PackedFormat.FP8, scale.repeat_interleave(FP8_BLOCK, 0)[:n], None)
    steps = rows.repeat_interleave(FP8_BLOCK // STEP, 1)[:, : k // STEP]
    tiles = steps[::TILE].half().contiguous()
    doubled = torch.stack((tiles, tiles), dim=-1).contiguous().view(torch.uint8)
    a, b, c, d = _registers(weights.view(torch.uint8).to(torch.int32))
    first = a[..., 0] | a[..., 1] << 8 | b[..., 0] << 16 | b[..., 1] << 24
    second = c[..., 0] | c[..., 1] << 8 | d[..., 0] << 16 | d[..., 1] << 24
    words = _words(_pair(first, second, n, k), n, k)
    return Packed(PackedFormat.FP8, words, doubled.view(n // TILE, k // STEP, 4), alpha, n, k)


def pack_nvfp4(codes: torch.Tensor, scale: torch.Tensor, tensor_scale: torch.Tensor) -> Packed:
    """codes: (n, k) uint8 of 0 to 15, sign, two exponent bits, one mantissa bit. scale: (n, k / 16) float8_e4m3fn.
    tensor_scale: float32, (n,) or a scalar."""
    n, k = _shape(codes)
    parts = _registers(codes.to(torch.int32))
    signs = [v >> 3 for v in parts]
    a, b, c, d = (v & 7 for v in parts)
    half = a << 9 | signs[0] << 15 | b << 6 | signs[1] << 12 | c | signs[2] << 14 | d << 3 | signs[3] << 13
    words = (half[..., 0] | half[..., 1] << 16).reshape(n // TILE, k // STEP, 2, 2, 32).transpose(3, 4)
    alpha = (tensor_scale.float() * NVFP4_SHIFT).expand(n).contiguous()
    scales = _scales(scale.view(torch.uint8)[..., None], n, k)
    return Packed(PackedFormat.NVFP4, _words(words, n, k), scales, alpha, n, k)


def join(parts: Sequence[Packed]) -> Packed:
    """Matrices of one form and depth, one below the other."""
    first = parts[0]
    if any(p.format is not first.format or p.k != first.k for p in parts):
        raise ValueError(f"cannot join {', '.join(f'{p.format} of {p.k} inputs' for p in parts)}")
    if len(parts) == 1:
        return first
    scales = [p.scales for p in parts if p.scales is not None]
    alphas = [p.alpha for p in parts if p.alpha is not None]
    return Packed(
        first.format,
        torch.cat([p.words for p in parts]),
        torch.cat(scales) if scales else None,
        torch.cat(alphas) if alphas else None,
        sum(p.n for p in parts),
        first.k,
    )


def pack16(weights: torch.Tensor) -> Packed:
    """weights: (n, k) bf16 or float16."""
    n, k = _shape(weights)
    a, b, c, d = _registers(weights.view(torch.int16))
    words = torch.stack((a, b, c, d), dim=-2).contiguous().view(torch.int32)
    return Packed(PackedFormat.DENSE, _words(words, n, k), None, None, n, k)


def unpack(packed: Packed) -> torch.Tensor:
    """The reference of the device's unpacking: the values (n, k) in float16, before `alpha`, in plain torch. Raises
    ValueError for dense weights, which keep what they were."""
    n, k = packed.n, packed.k
    tiles, steps = n // TILE, k // STEP
    words = packed.words
    if packed.format is PackedFormat.DENSE or packed.scales is None:
        raise ValueError("16-bit weights are packed as they are; keep the unpacked ones")
    if packed.format in (PackedFormat.Q4, PackedFormat.NVFP4):
        lanes = words.view(tiles, steps, 2, 32, 2).transpose(3, 4).reshape(tiles, steps, 4, 8, 4)
        half = torch.stack((lanes & 0xFFFF, lanes >> 16 & 0xFFFF), dim=-1)
        if packed.format is PackedFormat.Q4:
            parts = [half >> 6 & 15, half >> 2 & 15, half >> 14 & 3 | (half & 3) << 2, half >> 10 & 15]
        else:
            magnitude = [half >> 9 & 7, half >> 6 & 7, half & 7, half >> 3 & 7]
            parts = [m | (half >> s & 1) << 3 for m, s in zip(magnitude, (15, 12, 14, 13), strict=True)]
    else:
        lanes = words.view(tiles, steps, 2, 32, 2, 2).transpose(3, 4).reshape(tiles, steps, 4, 8, 4, 2)
        byte = [lanes >> 8 * i & 255 for i in range(4)]
        order = (0, 1, 2, 3) if packed.format is PackedFormat.FP8 else (0, 2, 1, 3)
        first, second = (torch.stack([byte[order[i]], byte[order[i + 1]]], dim=-1) for i in (0, 2))
        parts = [first[..., 0, :], second[..., 0, :], first[..., 1, :], second[..., 1, :]]
    codes = _unregister(parts, n, k)
    return _values(packed, codes)


def _values(packed: Packed, codes: torch.Tensor) -> torch.Tensor:
    form, n, k = packed.format, packed.n, packed.k
    assert packed.scales is not None
    if form is PackedFormat.FP8:
        halves = packed.scales.view(torch.float16).view(n // TILE, k // STEP, 2)[..., 0]
        scale = halves.repeat_interleave(TILE, 0).repeat_interleave(STEP, 1)
        return scaled_fp8(codes.to(torch.uint8).view(torch.float8_e4m3fn), scale)
    if form is PackedFormat.NVFP4:
        scale = _unscale(packed.scales, n, k, 1)[..., 0].view(torch.float8_e4m3fn)
        return scaled_fp4(codes, scale, 1.0 / NVFP4_SHIFT)
    width = 2 if form in (PackedFormat.Q4, PackedFormat.Q8_MIN) else 1
    stored = _unscale(packed.scales.view(torch.float16), n, k, width).double()
    shift: torch.Tensor | float = Q8_SHIFT
    if form is PackedFormat.Q4:
        shift = torch.where(torch.arange(n, device=stored.device) % TILE < 8, Q4_LOW, Q4_HIGH).double()[:, None]
    scale = stored[..., 0] / shift
    low = stored[..., 1] if width == 2 else (scale * -128.0).half().double()
    return grouped(codes, scale, low)


def grouped(codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """codes * scale + minimum, rounded once to float16. codes: (n, k) integers; scale, minimum: (n, groups) float64."""
    width = codes.shape[1] // scale.shape[1]
    wide, low = (v.repeat_interleave(width, dim=1) for v in (scale, minimum))
    return (codes.double() * wide + low).half()


def scaled_fp8(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """weights * scale, rounded once to float16. weights: (n, k) e4m3; scale: (n, k) float16."""
    return (weights.double() * scale.double()).half()


def scaled_fp4(codes: torch.Tensor, scale: torch.Tensor, factor: float) -> torch.Tensor:
    """The e2m1 numbers of `codes` (n, k) times `scale` (n, groups), e4m3, times `factor`, as float16."""
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64, device=codes.device)
    values = table[(codes & 7).long()] * torch.where(codes & 8 > 0, -1.0, 1.0)
    width = codes.shape[1] // scale.shape[1]
    return (values * scale.double().repeat_interleave(width, dim=1) * factor).half()


def _normalised(
    form: PackedFormat, scale: torch.Tensor, minimum: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Scales and minima times a power of two an output that brings the scales into range, and its inverse."""
    largest = scale.float().abs().amax(dim=1) / _LARGEST_SCALE[form]
    if minimum is not None:
        largest = torch.maximum(largest, minimum.float().abs().amax(dim=1) / _LARGEST_MINIMUM)
    _, exponent = torch.frexp(largest)
    # Exact on every device: a float's exponent field, where a device's power function may be off by a bit.
    bits = (127 - exponent.clamp(-120, 120)).to(torch.int32) << 23
    power = torch.where(largest > 0, bits.view(torch.float32), 1.0)
    up = power[:, None]
    low = None if minimum is None else minimum.float() * up
    return scale.float() * up, low, (1.0 / power).contiguous()


def _registers(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values (n, k) as four tensors (tiles, steps, blocks, r, q, pair), one a register of the instruction."""
    n, k = values.shape
    x = values.view(n // TILE, 2, 8, k // STEP, 4, 2, 4, 2)  # tile, row half, r, step, block, column half, q, pair
    x = x.permute(5, 1, 0, 3, 4, 2, 6, 7)
    return x[0, 0], x[0, 1], x[1, 0], x[1, 1]


def _unregister(parts: list[torch.Tensor], n: int, k: int) -> torch.Tensor:
    x = torch.stack(parts).view(2, 2, n // TILE, k // STEP, 4, 8, 4, 2)
    return x.permute(2, 1, 5, 3, 4, 0, 6, 7).reshape(n, k)


def _pair(first: torch.Tensor, second: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """8-bit words (tiles, steps, halves, lanes, blocks of the half, words of the block)."""
    both = torch.stack((first, second), dim=-1).reshape(n // TILE, k // STEP, 2, 2, 32, 2)
    return both.transpose(3, 4)


def _words(words: torch.Tensor, n: int, k: int) -> torch.Tensor:
    return words.contiguous().view(torch.int32).reshape(n // TILE, k // STEP, -1)


def _scales(values: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Scales (n, groups, 1 or 2) as bytes in the order half, r, group of the half, row half, scale or minimum."""
    x = values.view(n // TILE, 2, 8, k // STEP, 2, -1, values.shape[-1]).permute(0, 3, 4, 2, 5, 1, 6)
    return x.contiguous().view(torch.uint8).view(n // TILE, k // STEP, -1)


def _unscale(scales: torch.Tensor, n: int, k: int, width: int) -> torch.Tensor:
    """The inverse of `_scales`: (n, groups, width) of the type given."""
    x = scales.view(n // TILE, k // STEP, 2, 8, -1, 2, width).permute(0, 5, 3, 1, 2, 4, 6)
    return x.reshape(n, -1, width)


def _shape(values: torch.Tensor) -> tuple[int, int]:
    n, k = values.shape
    if not packable(n, k):
        raise ValueError(f"weights of ({n}, {k}); n must be a multiple of 16 and k of 64")
    return n, k
