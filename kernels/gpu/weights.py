"""Weights on the device: file forms packed or unpacked, and what a program asks of whoever provides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
import torch

from kernels.gpu.packing import Packed, PackedFormat, join, pack4, pack8, packable
from kernels.quant_types import BLOCKS, QuantType, RawTensor

PACKED_AS: dict[QuantType, PackedFormat] = {
    QuantType.Q4_0: PackedFormat.Q4,
    QuantType.Q4_1: PackedFormat.Q4,
    QuantType.Q4_K: PackedFormat.Q4,
    QuantType.Q5_K: PackedFormat.Q8_MIN,
    QuantType.Q6_K: PackedFormat.Q8_SHORT,
    QuantType.Q8_0: PackedFormat.Q8,
}
"""What a file's form is packed as. A 4-bit K-quant's scales, products of two numbers, are rounded to float16; five and
six bits lie in bytes. Nothing else is lost."""

CHUNK_VALUES = 1 << 24
"""Values packed at a time, so that packing takes no more room for a large matrix than for a small one."""


class WeightSource(Protocol):
    """Puts a file's tensors on the device. `dtype` is the type of dense weights and of what is multiplied with them."""

    dtype: torch.dtype

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        """The matrices one below the other, (sum of outputs, inputs): dense and contiguous, or packed."""
        ...

    def runs(self, parts: Sequence[RawTensor]) -> list[list[RawTensor]]:
        """`parts`, in order, in runs that one matrix holds best."""
        ...

    def packs(self, tensor: RawTensor) -> bool:
        """Whether the tensor as a matrix would be packed."""
        ...

    def table(self, tensor: RawTensor) -> torch.Tensor:
        """A matrix whose rows are looked up: dense and contiguous."""
        ...

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        """A vector, float32."""
        ...


class FileWeights:
    """Uploads a file's blocks and packs them on the device where `pack` and the matrix allow it, or unpacks them to 16
    bits (implements WeightSource). A file whose matrices are bf16 is computed in bf16, any other in float16."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, pack: bool) -> None:
        self.dtype = dtype
        self._device = device
        self._pack = pack and dtype is torch.float16

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        if all(self.packs(p) for p in parts) and len({PACKED_AS[p.quant_type] for p in parts}) == 1:
            return join([self._packed(p) for p in parts])
        return torch.cat([self.table(p) for p in parts])

    def runs(self, parts: Sequence[RawTensor]) -> list[list[RawTensor]]:
        return [list(run) for _, run in groupby(parts, lambda p: PACKED_AS[p.quant_type] if self.packs(p) else None)]

    def packs(self, tensor: RawTensor) -> bool:
        return self._pack and will_pack(tensor)

    def table(self, tensor: RawTensor) -> torch.Tensor:
        return unpack(self._upload(tensor), tensor.quant_type).reshape(tensor.shape).to(self.dtype)

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        return unpack(self._upload(tensor), tensor.quant_type).reshape(tensor.shape).float()

    def _upload(self, tensor: RawTensor) -> torch.Tensor:
        return torch.from_numpy(np.array(tensor.data, dtype=np.uint8, copy=True)).to(self._device)

    def _packed(self, tensor: RawTensor) -> Packed:
        n, k = tensor.shape
        rows = self._upload(tensor).view(n, -1)
        height = max(16, CHUNK_VALUES // k // 16 * 16)
        return join([_pack(rows[at : at + height], tensor.quant_type, k) for at in range(0, n, height)])


def will_pack(tensor: RawTensor) -> bool:
    """Whether a matrix has a form and a shape that can be packed."""
    return tensor.quant_type in PACKED_AS and len(tensor.shape) == 2 and packable(*tensor.shape)


def _pack(rows: torch.Tensor, form: QuantType, k: int) -> Packed:
    codes = quants(rows, form)
    n = len(rows)
    values, scale = codes.values.reshape(n, k), codes.scale.reshape(n, -1)
    if PACKED_AS[form] is PackedFormat.Q4:
        assert codes.minimum is not None
        return pack4(values, scale, codes.minimum.reshape(n, -1))
    return pack8(values, scale, codes.minimum.reshape(n, -1) if codes.minimum is not None else None)


@dataclass(frozen=True, slots=True)
class Quants:
    """Blocks' contents: value = values * scale (+ minimum). `values` (blocks, values of a block), uint8 where there is
    a minimum, else int8; `scale` and `minimum` (blocks, groups of a block), float32."""

    values: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None


def quants(data: torch.Tensor, form: QuantType) -> Quants:
    """The integers and scales of a quantised form's blocks, in order. data: uint8 blocks of any shape.

    Formulas of the GGUF format. A block of 32 starts with a float16 scale d (Q4_1: then a float16 minimum m); four-bit
    values keep the first half of the block in the low nibbles: Q4_0 d * (q - 8), Q4_1 d * q + m, Q8_0 d * q. Q4_K and
    Q5_K hold 8 groups of 32 under d and dmin with scales and minima of 6 bits, Q6_K 16 groups of 16 under d with scales
    of 8.
    Raises ValueError for another form.
    """
    blocks = data.reshape(-1, BLOCKS[form].bytes)
    if form is QuantType.Q8_0:
        return Quants(blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0), None)
    if form in (QuantType.Q4_0, QuantType.Q4_1):
        packed = blocks[:, -16:]
        scale = _half(blocks, 0)
        minimum = scale * -8.0 if form is QuantType.Q4_0 else _half(blocks, 2)
        return Quants(torch.cat((packed & 15, packed >> 4), dim=1), scale, minimum)
    if form in (QuantType.Q4_K, QuantType.Q5_K):
        return _four_or_five_bit(blocks, form)
    if form is QuantType.Q6_K:
        return _six_bit(blocks)
    raise ValueError(f"weights in form {form} cannot be put on a CUDA device")


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _four_or_five_bit(blocks: torch.Tensor, form: QuantType) -> Quants:
    """d, dmin, 8 scales and minima of 6 bits in 12 bytes, (the fifth bits,) the nibbles of two groups in 32 bytes."""
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, last & 15 | first >> 6 << 4), dim=1)
    minima = torch.cat((second & 63, last >> 4 | second >> 6 << 4), dim=1)
    nibbles = blocks[:, -128:].view(-1, 4, 1, 32)
    codes = torch.cat((nibbles & 15, nibbles >> 4), dim=2).view(-1, 8, 32)
    if form is QuantType.Q5_K:
        bits = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
        codes = codes | (blocks[:, None, 16:48] >> bits & 1) << 4
    return Quants(codes.reshape(-1, 256), _half(blocks, 0) * scales, _half(blocks, 2) * -1.0 * minima)


def _six_bit(blocks: torch.Tensor) -> Quants:
    """The lower 4 bits, the upper 2, 16 signed scales, d. Each half of 128 values is 4 runs of 32."""
    low = blocks[:, :128].view(-1, 2, 2, 32)
    nibbles = torch.cat((low & 15, low >> 4), dim=2)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    upper = blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts & 3
    codes = (nibbles | upper << 4).to(torch.int8) - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return Quants(codes.reshape(-1, 256), _half(blocks, 208) * scales, None)


def unpack(data: torch.Tensor, form: QuantType) -> torch.Tensor:
    """The values of a file form's blocks, float32, in order. data: uint8 blocks of any shape."""
    flat = data.reshape(-1)
    if form is QuantType.F32:
        return flat.view(torch.float32)
    if form is QuantType.F16:
        return flat.view(torch.float16).float()
    if form is QuantType.BF16:
        return flat.view(torch.bfloat16).float()
    blocks = quants(data, form)
    groups = blocks.values.view(*blocks.scale.shape, -1)
    values = blocks.scale[..., None] * groups
    return values if blocks.minimum is None else values + blocks.minimum[..., None]
