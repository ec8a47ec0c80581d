"""Weights on the device: file forms unpacked or repacked, and what a program asks of whoever provides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from kernels.forms import BLOCKS, Form, RawTensor
from kernels.gpu.skinny import Packed, pack4


class WeightSource(Protocol):
    """Puts a file's tensors on the device. `dtype` is the type of dense weights and of what is multiplied with them."""

    dtype: torch.dtype

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        """The matrices one below the other, (sum of outputs, inputs): dense and contiguous, or packed."""
        ...

    def table(self, tensor: RawTensor) -> torch.Tensor:
        """A matrix whose rows are looked up: dense and contiguous."""
        ...

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        """A vector, float32."""
        ...


class FileWeights:
    """Uploads a file's blocks and unpacks them on the device, or repacks 4-bit ones where `pack` and the matrix allows
    it (implements WeightSource). A file whose matrices are bf16 is computed in bf16, any other in float16."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, pack: bool) -> None:
        self.dtype = dtype
        self._device = device
        self._pack = pack

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        if self._pack and all(_packs(p) for p in parts):
            split = [_quants(self._upload(p), p) for p in parts]
            return pack4(*(torch.cat(column) for column in zip(*split, strict=True)))
        return torch.cat([self.table(p) for p in parts])

    def table(self, tensor: RawTensor) -> torch.Tensor:
        return unpack(self._upload(tensor), tensor.form).reshape(tensor.shape).to(self.dtype)

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        return unpack(self._upload(tensor), tensor.form).reshape(tensor.shape).float()

    def _upload(self, tensor: RawTensor) -> torch.Tensor:
        return torch.from_numpy(np.array(tensor.data, dtype=np.uint8, copy=True)).to(self._device)


def _packs(tensor: RawTensor) -> bool:
    return tensor.form in (Form.Q4_0, Form.Q4_1) and tensor.shape[0] % 16 == 0 and tensor.shape[1] % 64 == 0


def _quants(data: torch.Tensor, tensor: RawTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quants (n, k) uint8, and scale and minimum (n, k / 32) float16, of a 4-bit tensor's blocks."""
    n, k = tensor.shape
    blocks = data.reshape(-1, BLOCKS[tensor.form].bytes)
    scale = blocks[:, :2].contiguous().view(torch.float16)
    head = 2 if tensor.form is Form.Q4_0 else 4
    minimum = scale * -8.0 if tensor.form is Form.Q4_0 else blocks[:, 2:4].contiguous().view(torch.float16)
    packed = blocks[:, head:]
    quants = torch.cat((packed & 15, packed >> 4), dim=1)
    return quants.reshape(n, k), scale.reshape(n, k // 32), minimum.reshape(n, k // 32)


def unpack(data: torch.Tensor, form: Form) -> torch.Tensor:
    """The values of a file form's blocks, float32, in order. data: uint8 blocks of any shape.

    Formulas of the GGUF format: a block starts with a float16 scale d (Q4_1: then a float16 minimum m); four-bit values
    q keep the first half of the block in the low nibbles: Q4_0 d * (q - 8), Q4_1 d * q + m, Q8_0 d * q.
    """
    flat = data.reshape(-1)
    if form is Form.F32:
        return flat.view(torch.float32)
    if form is Form.F16:
        return flat.view(torch.float16).float()
    if form is Form.BF16:
        return flat.view(torch.bfloat16).float()
    blocks = flat.view(-1, BLOCKS[form].bytes)
    d = blocks[:, :2].contiguous().view(torch.float16).float()
    if form is Form.Q8_0:
        return d * blocks[:, 2:].contiguous().view(torch.int8).float()
    head = 2 if form is Form.Q4_0 else 4
    packed = blocks[:, head:]
    q = torch.cat((packed & 15, packed >> 4), dim=1).float()
    if form is Form.Q4_0:
        return d * (q - 8.0)
    if form is Form.Q4_1:
        return d * q + blocks[:, 2:4].contiguous().view(torch.float16).float()
    raise ValueError(f"weights in form {form} cannot be put on a CUDA device")
