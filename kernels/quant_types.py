"""Quantisation types: how a matrix lies in a model file, before a backend packs it for itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class QuantType(StrEnum):
    """The types of a GGUF file's tensors, by GGUF's names."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"

    @property
    def quantised(self) -> bool:
        """Whether values are integer codes under scales."""
        return self not in (QuantType.F32, QuantType.F16, QuantType.BF16)


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """`values` consecutive values along K share one block of `bytes`."""

    values: int
    bytes: int


BLOCKS: dict[QuantType, BlockSpec] = {
    QuantType.F32: BlockSpec(1, 4),
    QuantType.F16: BlockSpec(1, 2),
    QuantType.BF16: BlockSpec(1, 2),
    QuantType.Q4_0: BlockSpec(32, 18),
    QuantType.Q4_1: BlockSpec(32, 20),
    QuantType.Q8_0: BlockSpec(32, 34),
    QuantType.Q4_K: BlockSpec(256, 144),
    QuantType.Q5_K: BlockSpec(256, 176),
    QuantType.Q6_K: BlockSpec(256, 210),
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file holds it. `shape` is (n, k), outputs first and contiguous along k, or (k,) for a vector.
    `blocks` are its bytes, shape (n, k / values * bytes), or what reads them."""

    name: str
    quant_type: QuantType
    shape: tuple[int, ...]
    blocks: NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]

    @property
    def data(self) -> NDArray[np.uint8]:
        """The blocks. A tensor of a file reads them anew each time, into memory of the caller's own."""
        return self.blocks() if callable(self.blocks) else self.blocks

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, without reading them."""
        spec = BLOCKS[self.quant_type]
        return math.prod(self.shape) // spec.values * spec.bytes
