"""The operations that a model's forward is made of, and the recorded program that a backend makes of them.

A model file calls `Ops` once, at load; the backend records each call. Afterwards `Program.run` computes a pass of
any rows in one go. Values are handles that only their backend understands. Every operation works row by row: its
result for a row depends on that row's inputs alone, bit for bit, whatever rows share the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernels.forms import RawTensor

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
        self, qkv: V, heads: Heads, rotary: Rotary, layer: int, q_norm: Norm | None, k_norm: Norm | None
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


class PassRows(Protocol):
    """The rows of one pass as flat int32 arrays (`engine.rows.RowBatch` says what each means)."""

    @property
    def n(self) -> int: ...
    @property
    def slot(self) -> NDArray[np.int32]: ...
    @property
    def token(self) -> NDArray[np.int32]: ...
    @property
    def position(self) -> NDArray[np.int32]: ...
    @property
    def kv_row(self) -> NDArray[np.int32]: ...
    @property
    def prefix(self) -> NDArray[np.int32]: ...
    @property
    def path_start(self) -> NDArray[np.int32]: ...
    @property
    def path(self) -> NDArray[np.int32]: ...
    @property
    def logit_rows(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class FormUse:
    """How the tensors of one file form are run."""

    file: str
    runs_as: str
    tensors: int


class Program(Protocol):
    """A recorded forward on one backend."""

    name: str
    """The backend in a word or two, such as `native avx2`."""

    def run(self, rows: PassRows, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Compute a pass; `kv_base` (slots, 2 * layers) are the addresses of row 0 of each layer's K and V. Returns
        the logits of `rows.logit_rows`, shape (count, vocabulary), a view that the next run overwrites."""
        ...

    def forms(self) -> list[FormUse]: ...

    def weight_bytes(self) -> int:
        """Bytes that the packed weights hold."""
        ...

    def workspace_bytes(self) -> int:
        """Bytes of transient buffers held now."""
        ...


def vector(tensor: RawTensor) -> NDArray[np.float32]:
    """A one-dimensional tensor as float32. Raises ValueError where its form is quantised."""
    if tensor.form == "f32":
        return np.ascontiguousarray(tensor.data.reshape(-1).view(np.float32))
    if tensor.form == "f16":
        return tensor.data.reshape(-1).view(np.float16).astype(np.float32)
    if tensor.form == "bf16":
        return (tensor.data.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"{tensor.name}: a vector in form {tensor.form}; f32, f16 and bf16 are read")
