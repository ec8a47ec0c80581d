"""Float32 twins of every operation, as plain as they can be: what the tests hold the backends to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.forms import BLOCKS, Form, RawTensor
from kernels.program import Rotary

Array = NDArray[np.float32]


def dequantise(tensor: RawTensor) -> Array:
    """The values of a tensor as float32, in its shape."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.form is Form.F32:
        return np.asarray(data.view(np.float32).reshape(tensor.shape), np.float32)
    if tensor.form is Form.F16:
        return data.view(np.float16).astype(np.float32).reshape(tensor.shape)
    if tensor.form is Form.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    if tensor.form is Form.Q8_0:
        blocks = data.reshape(-1, 34)
        scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
        return (scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)).astype(np.float32).reshape(tensor.shape)
    if tensor.form in (Form.Q4_K, Form.Q5_K, Form.Q6_K):
        blocks = data.reshape(-1, BLOCKS[tensor.form].bytes)
        values = _six_bit(blocks) if tensor.form is Form.Q6_K else _four_or_five_bit(blocks, tensor.form)
        return values.reshape(tensor.shape)
    head = 4 if tensor.form is Form.Q4_1 else 2
    blocks = data.reshape(-1, head + 16)
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    low = -8.0 * scale if head == 2 else np.ascontiguousarray(blocks[:, 2:4]).view(np.float16).astype(np.float32)
    codes = np.concatenate([blocks[:, head:] & 15, blocks[:, head:] >> 4], axis=1)
    return np.asarray((scale * codes + low).reshape(tensor.shape), np.float32)


def _four_or_five_bit(blocks: NDArray[np.uint8], form: Form) -> Array:
    """Q4_K and Q5_K: d and dmin, 8 scales and minima of 6 bits in 12 bytes, (the fifth bits,) nibbles of 8 groups."""
    halves = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32)
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, last = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    nibbles = blocks[:, -128:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 8, 32)
    if form is Form.Q5_K:
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


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Rows (..., k) as quantised products read them, 32 values a block. `values` are int8 codes times float16 scales,
    as in GGUF's q8_0; `sums` (..., k / 32) are the blocks' sums as its q8_1 keeps them, in float16."""

    values: Array
    sums: Array


def quantise_rows(x: Array) -> QuantisedRows:
    """The int8 quantisation that quantised products apply to their inputs."""
    blocks = x.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    inverse = np.divide(np.float32(127.0), amax, out=np.zeros_like(amax), where=amax > 0)
    codes = np.rint(blocks * inverse)
    scale = amax / np.float32(127.0)
    sums = (scale * codes.sum(axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    values = codes * scale.astype(np.float16).astype(np.float32)
    return QuantisedRows(values.reshape(x.shape), sums.reshape(*x.shape[:-1], -1))


def linear(x: Array, weight: RawTensor, bias: Array | None = None) -> Array:
    """x (rows, k) times `weight` (n, k) transposed; the inputs of a quantised weight are quantised first, and a stored
    minimum multiplies their float16 sums."""
    if not weight.form.quantised:
        return linear_exact(x, weight, bias)
    rows = quantise_rows(x)
    y = linear_exact(rows.values, weight, bias)
    if weight.form is Form.Q4_1:
        minima = np.ascontiguousarray(weight.data.reshape(-1, 20)[:, 2:4]).view(np.float16).astype(np.float32)
        rounding = rows.sums - rows.values.reshape(*rows.sums.shape, 32).sum(axis=-1)
        y = y + rounding @ minima.reshape(weight.shape[0], -1).T
    return y


def linear_exact(x: Array, weight: RawTensor, bias: Array | None = None) -> Array:
    """x (rows, k) times `weight` (n, k) transposed, inputs as they are."""
    y: Array = x @ dequantise(weight).T
    return y if bias is None else y + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)


def rotate(x: Array, positions: NDArray[np.int32], rotary: Rotary) -> Array:
    """Rotary embedding of x (rows, heads, head_dim) at the rows' positions."""
    theta = positions[:, None, None].astype(np.float64) * np.array(rotary.frequencies)
    cos = (np.cos(theta) * rotary.magnitude).astype(np.float32)
    sin = (np.sin(theta) * rotary.magnitude).astype(np.float32)
    pairs = len(rotary.frequencies)
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    if not rotary.interleaved:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attend(q: Array, k: Array, v: Array) -> Array:
    """One row's attention: q (heads, head_dim) scaled, k and v (places, kv_heads, head_dim) in order of place."""
    group = q.shape[0] // k.shape[1]
    out = np.empty_like(q)
    for h in range(q.shape[0]):
        scores = k[:, h // group] @ q[h]
        weights = np.exp(scores - scores.max())
        out[h] = (weights / weights.sum()) @ v[:, h // group]
    return out


def silu_gate(gate: Array, up: Array) -> Array:
    """silu(gate) * up"""
    return (gate / (1.0 + np.exp(-gate.astype(np.float64))) * up).astype(np.float32)
