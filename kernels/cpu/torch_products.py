"""Matrix products in torch whose rows do not depend on the rows beside them.

Three forms, the first that fits a matrix: 4-bit packed (`_weight_int4pack_mm_for_cpu`, where the processor has the
AVX-512 body of it; an 8-bit matrix is two 4-bit ones, 16 * high + low, exact to the file), float32 in blocks of a
constant number of rows padded with zeros, and float32 row by row. Each matrix shape is checked as it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.cpu import threads  # noqa: F401  (bounded spinning is set before torch is imported)

# isort: split
import torch

from kernels.dequantise import dequantise
from kernels.quant_types import QuantType, RawTensor

BLOCK_ROWS = 4
CHECK_ROWS = (2, 3, 4, 8, 16)
GROUP = 32


class Product(Protocol):
    """x (rows, k) float32 -> (rows, n) float32."""

    runs_as: str
    bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Int4:
    """One 4-bit matrix: value = (code - 8) * scale + zero for each group of 32 inputs, kept as float32."""

    def __init__(self, codes: NDArray[np.integer[Any]], scale: NDArray[np.float32], zero: NDArray[np.float32]) -> None:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(codes.astype(np.int32)), 1)
        self._packed = packed
        self._scales = torch.from_numpy(np.ascontiguousarray(np.stack([scale.T, zero.T], axis=-1)))
        self.bytes = packed.numel() * packed.element_size() + self._scales.numel() * 4

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
        return y


class PackedFour:
    """A q4_0 or q4_1 matrix."""

    runs_as = "int4 group 32, float32 activations"

    def __init__(self, weight: RawTensor) -> None:
        head = 4 if weight.quant_type is QuantType.Q4_1 else 2
        blocks = _blocks(weight, head + 16)
        scale = _halves(blocks[..., :2])
        codes = np.concatenate([blocks[..., head:] & 15, blocks[..., head:] >> 4], axis=-1)
        zero = _halves(blocks[..., 2:4]) + 8 * scale if head == 4 else np.zeros_like(scale)
        self._product = Int4(codes.reshape(weight.shape), scale, zero)
        self.bytes = self._product.bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)


class PackedEight:
    """A q8_0 matrix as 16 * high + low, both 4-bit: exact to the file."""

    runs_as = "int8 group 32 as two int4, float32 activations"

    def __init__(self, weight: RawTensor) -> None:
        blocks = _blocks(weight, 34)
        scale = _halves(blocks[..., :2])
        # value + 128 = 16 * a + b with a and b in 0..15, so value = 16 * (a - 8) + (b - 8) + 8.
        shifted = blocks[..., 2:] ^ 0x80
        self._high = Int4((shifted >> 4).reshape(weight.shape), 16 * scale, np.zeros_like(scale))
        self._low = Int4((shifted & 15).reshape(weight.shape), scale, 8 * scale)
        self.bytes = self._high.bytes + self._low.bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._high(x) + self._low(x)


class DenseBlocks:
    """A float32 matrix, multiplied by blocks of BLOCK_ROWS rows, so that every product has the same shape."""

    runs_as = f"float32, rows in blocks of {BLOCK_ROWS}"

    def __init__(self, weight: RawTensor) -> None:
        self._weight = torch.from_numpy(dequantise(weight).copy())
        self.bytes = self._weight.numel() * 4

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], self._weight.shape[0])
        for first in range(0, x.shape[0], BLOCK_ROWS):
            rows = x[first : first + BLOCK_ROWS]
            block = torch.zeros(BLOCK_ROWS, x.shape[1])
            block[: len(rows)] = rows
            out[first : first + len(rows)] = torch.nn.functional.linear(block, self._weight)[: len(rows)]
        return out


class DenseRows:
    """A float32 matrix, multiplied row by row."""

    runs_as = "float32, row by row"

    def __init__(self, weight: RawTensor) -> None:
        self._weight = torch.from_numpy(dequantise(weight).copy())
        self.bytes = self._weight.numel() * 4

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.nn.functional.linear(x[i : i + 1].clone(), self._weight) for i in range(x.shape[0])])


class Products:
    """Makes products, checking each kind once for each shape."""

    def __init__(self) -> None:
        self._invariant: dict[tuple[str, tuple[int, ...]], bool] = {}

    def make(self, weight: RawTensor) -> Product:
        """The fastest form of a matrix whose rows are their own: see the module's docstring."""
        fast = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and weight.shape[0] % 16 == 0
        kinds: list[Callable[[RawTensor], Product]] = [DenseBlocks]
        if fast and weight.quant_type in (QuantType.Q4_0, QuantType.Q4_1):
            kinds.insert(0, PackedFour)
        if fast and weight.quant_type is QuantType.Q8_0:
            kinds.insert(0, PackedEight)
        for kind in kinds:
            made = kind(weight)
            key = made.runs_as, weight.shape
            if key not in self._invariant:
                self._invariant[key] = row_invariant(made, weight.shape[1])
            if self._invariant[key]:
                return made
        return DenseRows(weight)


def row_invariant(multiply: Product, k: int) -> bool:
    """Whether each of some random rows has the same bits alone and among 2 to 16."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((max(CHECK_ROWS), k)).astype(np.float32))
    alone = torch.cat([multiply(x[i : i + 1].clone()) for i in range(x.shape[0])])
    return all(torch.equal(multiply(x[:n].clone()), alone[:n]) for n in CHECK_ROWS)


def _blocks(weight: RawTensor, size: int) -> NDArray[np.uint8]:
    """The blocks of a matrix, shape (n, blocks, size)."""
    return np.ascontiguousarray(weight.data).reshape(weight.shape[0], -1, size)


def _halves(pairs: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32)
