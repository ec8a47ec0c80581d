"""A whole forward through the float32 references: the `Ops` of the tests, unhurried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels import reference as ref
from kernels.dequantise import dequantise
from kernels.kv_view import kv_rows
from kernels.program import Heads, Linear, Norm, Rotary, RowBatch, vector
from kernels.quant_types import RawTensor

Values = dict[int, ref.Array]
Multiply = Callable[[ref.Array, RawTensor, ref.Array | None], ref.Array]


class ReferenceOps:
    """Implements `kernels.program.Ops`; `run` computes a batch. Values are indices into a batch's results.

    `multiply` is `reference.linear` or `reference.linear_exact`, as the backend to be compared treats its inputs."""

    def __init__(self, multiply: Multiply = ref.linear) -> None:
        self._multiply = multiply
        self._steps: list[Callable[[RowBatch, NDArray[np.uint64], Values], ref.Array]] = []

    def run(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> ref.Array:
        """The logits of `rows.logit_rows`; K and V rows are read and written at the addresses of `kv_base`."""
        values: Values = {}
        for i, step in enumerate(self._steps):
            values[i] = step(rows, kv_base, values)
        return values[len(self._steps) - 1]

    def embed(self, table: RawTensor) -> int:
        values = dequantise(table)
        return self._add(lambda rows, kv, v: values[rows.token])

    def project(self, x: int, norm: Norm, parts: Sequence[Linear]) -> int:
        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> ref.Array:
            n = _norm(v[x], norm)
            return np.concatenate([self._linear(n, p) for p in parts], axis=1)

        return self._add(step)

    def rotate_store(
        self, qkv: int, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> int:
        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> ref.Array:
            parts = v[qkv].reshape(rows.n, heads.heads + 2 * heads.kv_heads, heads.head_dim)
            q, k = parts[:, : heads.heads], parts[:, heads.heads : heads.heads + heads.kv_heads]
            q = ref.rotate(_norm(q, q_norm), rows.position, rotary)
            k = ref.rotate(_norm(k, k_norm), rows.position, rotary)
            for r in range(rows.n):
                at = kv[rows.slot[r]]
                kv_rows(int(at[2 * layer]), int(rows.kv_row[r]) + 1, heads)[-1] = k[r]
                kv_rows(int(at[2 * layer + 1]), int(rows.kv_row[r]) + 1, heads)[-1] = parts[r, -heads.kv_heads :]
            return (q * np.float32(heads.head_dim**-0.5)).astype(np.float32)

        return self._add(step)

    def attend(self, q: int, heads: Heads, layer: int) -> int:
        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> ref.Array:
            out = np.empty((rows.n, heads.q_width), np.float32)
            for r in range(rows.n):
                path = rows.ancestors[rows.ancestor_start[r] : rows.ancestor_start[r + 1]]
                places = np.concatenate([np.arange(rows.prefix[r]), path]).astype(np.int64)
                most = int(places.max()) + 1
                at = kv[rows.slot[r]]
                k = kv_rows(int(at[2 * layer]), most, heads)[places].astype(np.float32)
                val = kv_rows(int(at[2 * layer + 1]), most, heads)[places].astype(np.float32)
                q_heads = v[q][r].reshape(heads.heads, heads.head_dim)
                out[r] = ref.attend(q_heads, k, val).reshape(-1)
            return out

        return self._add(step)

    def add_linear(self, residual: int, x: int, linear: Linear) -> int:
        return self._add(lambda rows, kv, v: v[residual] + self._linear(v[x], linear))

    def project_gated(self, x: int, norm: Norm, gate: Linear, up: Linear) -> int:
        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> ref.Array:
            n = _norm(v[x], norm)
            return ref.silu_gate(self._linear(n, gate), self._linear(n, up))

        return self._add(step)

    def head(self, x: int, norm: Norm, linear: Linear) -> None:
        self._add(lambda rows, kv, v: self._linear(_norm(v[x][rows.logit_rows], norm), linear))

    def _linear(self, x: ref.Array, linear: Linear) -> ref.Array:
        return self._multiply(x, linear.weight, None if linear.bias is None else vector(linear.bias))

    def _add(self, step: Callable[[RowBatch, NDArray[np.uint64], Values], ref.Array]) -> int:
        self._steps.append(step)
        return len(self._steps) - 1


def _norm(x: ref.Array, norm: Norm | None) -> ref.Array:
    return x if norm is None else ref.rms_norm(x, vector(norm.weight), norm.eps)
