"""Float32 references of every operation, as plain as they can be: what the tests hold the backends to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.dequantise import dequantise
from kernels.program import Rotary
from kernels.quant_types import QuantType, RawTensor

Array = NDArray[np.float32]


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
    if not weight.quant_type.quantised:
        return linear_exact(x, weight, bias)
    rows = quantise_rows(x)
    y = linear_exact(rows.values, weight, bias)
    if weight.quant_type is QuantType.Q4_1:
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
