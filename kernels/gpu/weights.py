"""Weights on the device: file forms unpacked to bf16, and what a program asks of whoever provides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from kernels.forms import BLOCKS, Form, RawTensor


class WeightSource(Protocol):
    """Puts a file's tensors on the device."""

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor:
        """The matrices one below the other, (sum of outputs, inputs) bf16 contiguous."""
        ...

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        """A vector, float32."""
        ...


class FileWeights:
    """Uploads a tensor's blocks and unpacks them there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor:
        outputs = sum(p.shape[0] for p in parts)
        whole = torch.empty((outputs, parts[0].shape[1]), dtype=torch.bfloat16, device=self._device)
        row = 0
        for part in parts:
            whole[row : row + part.shape[0]] = self._values(part)
            row += part.shape[0]
        return whole

    def vector(self, tensor: RawTensor) -> torch.Tensor:
        return self._values(tensor).reshape(tensor.shape).float()

    def _values(self, tensor: RawTensor) -> torch.Tensor:
        with_copy = np.array(tensor.data, dtype=np.uint8, copy=True)
        return unpack(torch.from_numpy(with_copy).to(self._device), tensor.form).reshape(tensor.shape)


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
