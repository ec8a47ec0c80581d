"""The values of quantised tensors as float32, in plain NumPy: GGUF's block layouts, one function a family."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.quant_types import BLOCKS, QuantType, RawTensor

Array = NDArray[np.float32]


def dequantise(tensor: RawTensor) -> Array:
    """The values of a tensor as float32, in its shape."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.quant_type is QuantType.F32:
        return np.asarray(data.view(np.float32).reshape(tensor.shape), np.float32)
    if tensor.quant_type is QuantType.F16:
        return data.view(np.float16).astype(np.float32).reshape(tensor.shape)
    if tensor.quant_type is QuantType.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    if tensor.quant_type is QuantType.Q8_0:
        blocks = data.reshape(-1, 34)
        scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
        return (scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)).astype(np.float32).reshape(tensor.shape)
    if tensor.quant_type in (QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K):
        blocks = data.reshape(-1, BLOCKS[tensor.quant_type].bytes)
        values = (
            _six_bit(blocks) if tensor.quant_type is QuantType.Q6_K else _four_or_five_bit(blocks, tensor.quant_type)
        )
        return values.reshape(tensor.shape)
    head = 4 if tensor.quant_type is QuantType.Q4_1 else 2
    blocks = data.reshape(-1, head + 16)
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    low = -8.0 * scale if head == 2 else np.ascontiguousarray(blocks[:, 2:4]).view(np.float16).astype(np.float32)
    codes = np.concatenate([blocks[:, head:] & 15, blocks[:, head:] >> 4], axis=1)
    return np.asarray((scale * codes + low).reshape(tensor.shape), np.float32)


def _four_or_five_bit(blocks: NDArray[np.uint8], form: QuantType) -> Array:
    """Q4_K and Q5_K: d and dmin, 8 scales and minima of 6 bits in 12 bytes, (the fifth bits,) nibbles of 8 groups."""
    halves = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32)
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, last = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    nibbles = blocks[:, -128:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 8, 32)
    if form is QuantType.Q5_K:
        codes |= (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    steps = halves[:, :1] * scales
    lows = halves[:, 1:] * minima
    return np.asarray(steps[..., None] * codes - lows[..., None], np.float32)


def _six_bit(blocks: NDArray[np.uint8]) -> Array:
    """Q6_K: the lower 4 bits, the upper 2, 16 signed scales, d. Each half of 128 values is 4 runs of 32."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2)
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (nibbles | upper << 4).astype(np.int8) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    steps = np.ascontiguousarray(blocks[:, 208:]).view(np.float16).astype(np.float32) * scales
    return np.asarray(steps[..., None] * codes.reshape(-1, 16, 16), np.float32)
