"""The operations that a model's forward is made of, and the recorded program that a backend makes of them.

A model file calls `Ops` once, at load; the backend records each call. Afterwards `Program.run` computes a batch of
any rows in one go. Values are handles that only their backend understands. Every operation works row by row: its
result for a row depends on that row's inputs alone, bit for bit, whatever rows share the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernels.quant_types import RawTensor

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight."""

    weight: RawTensor
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """y = W x + bias, `weight` of shape (outputs, inputs)."""

    weight: RawTensor
    bias: RawTensor | None = None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary embedding: pair i of a head turns by position * frequencies[i] radians, cosine and sine times
    `magnitude`. `interleaved` pairs dimensions (2i, 2i + 1), otherwise (i, i + pairs)."""

    frequencies: tuple[float, ...]
    magnitude: float
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads over shared KV heads: query head h reads KV head h // (heads / kv_heads)."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


class Ops(Protocol[V]):
    """Records a forward. Widths are per row; activations are float32."""

    def embed(self, table: RawTensor) -> V:
        """The rows' token embeddings, width inputs of `table` (vocabulary, width)."""
        ...

    def project(self, x: V, norm: Norm, parts: Sequence[Linear]) -> V:
        """The outputs of `parts` side by side over the normalised `x`."""
        ...

    def rotate_store(
        self, qkv: V, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> V:
        """Split `qkv` (queries, keys, values); normalise each head of Q and K where asked; turn Q and K by their
        positions; write K and V as float16 to the layer's KV rows. Returns Q scaled by 1 / sqrt(head_dim)."""
        ...

    def attend(self, q: V, heads: Heads, layer: int) -> V:
        """Each row's attention over its places: KV rows [0, prefix), then its path. Width heads * head_dim."""
        ...

    def add_linear(self, residual: V, x: V, linear: Linear) -> V:
        """`residual` + linear(x). The handle `residual` is spent."""
        ...

    def project_gated(self, x: V, norm: Norm, gate: Linear, up: Linear) -> V:
        """silu(gate(n)) * up(n) over n, the normalised `x`."""
        ...

    def head(self, x: V, norm: Norm, linear: Linear) -> None:
        """The logits of the rows that ask for them: linear over the normalised `x`. The program's last operation."""
        ...


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch as flat arrays of `n` rows (int32), ready for a backend.

    `position` = prefix + path length - 1 is the row's place in its sequence (rotary angle and attention order).
    `kv_row` is where its K and V are written; all of a layer's K and V are written before its attention runs. A chain
    needs no table: its rows have prefix = kv_row and themselves alone as path. `ancestors` holds the concatenated
    paths, row i's in `ancestors[ancestor_start[i] : ancestor_start[i + 1]]`. `logit_rows` lists the rows whose logits
    are returned, in order.
    """

    slot: NDArray[np.int32]
    token: NDArray[np.int32]
    position: NDArray[np.int32]
    kv_row: NDArray[np.int32]
    prefix: NDArray[np.int32]
    ancestor_start: NDArray[np.int32]
    ancestors: NDArray[np.int32]
    logit_rows: NDArray[np.int32]

    @property
    def n(self) -> int:
        return len(self.token)


WeightFormats = Mapping[tuple[str, str], int]
"""How many tensors of a file's quantisation type run in which form: (type, form in words) to a count, sorted."""


class Program(Protocol):
    """A recorded forward on one backend."""

    name: str
    """The backend in a word or two, such as `native avx2`."""

    def run(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Compute a batch; `kv_base` (slots, 2 * layers) are the addresses of row 0 of each layer's K and V. Returns
        the logits of `rows.logit_rows`, shape (count, vocabulary), a view that the next run overwrites."""
        ...

    def forms(self) -> WeightFormats: ...

    def weight_bytes(self) -> int:
        """Bytes that the packed weights hold."""
        ...

    def workspace_bytes(self) -> int:
        """Bytes of transient buffers held now."""
        ...


def vector(tensor: RawTensor) -> NDArray[np.float32]:
    """A one-dimensional tensor as float32. Raises ValueError where its form is quantised."""
    if tensor.quant_type == "f32":
        return np.ascontiguousarray(tensor.data.reshape(-1).view(np.float32))
    if tensor.quant_type == "f16":
        return tensor.data.reshape(-1).view(np.float16).astype(np.float32)
    if tensor.quant_type == "bf16":
        return (tensor.data.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"{tensor.name}: a vector in form {tensor.quant_type}; f32, f16 and bf16 are read")
