"""A model's forward on a CUDA device, recorded once: each operation as a step of kernel launches over named buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.gpu.attention import attend_rows, attend_tiles
from kernels.gpu.launch import LaunchMode, default_mode
from kernels.gpu.linear import Epilogue, linear
from kernels.gpu.norm import embed, rms_norm
from kernels.gpu.packing import Packed
from kernels.gpu.replay import UNPACKED, Buffers, CudaProgram, ForwardContext, Step
from kernels.gpu.rotary import HeadShape, rotary_kv
from kernels.gpu.skinny import MAX_ROWS as SKINNY_ROWS
from kernels.gpu.skinny import skinny, unpack_rows
from kernels.gpu.weights import WeightSource
from kernels.program import Heads, Linear, Norm, Rotary
from kernels.quant_types import RawTensor

MAX_ROWS = 1 << 16
"""Rows of one batch at most, whatever the program was made for."""


@dataclass(frozen=True, slots=True)
class Value:
    """A per-row activation: the buffer that holds it and its width. `bias` is still to be added by whoever reads it."""

    buffer: str
    width: int
    bias: torch.Tensor | None = None


class CudaOps:
    """Records a forward (implements `kernels.program.Ops`). `positions` bounds the places a row may have; `mode` is
    how kernels follow each other, None what suits the device."""

    def __init__(
        self, weights: WeightSource, device: torch.device, positions: int, mode: LaunchMode | None = None
    ) -> None:
        self._weights = weights
        self._device = device
        self._positions = positions
        self._mode = mode if mode is not None else default_mode(device)
        self._steps: list[Step] = []
        self._buffers = Buffers(device)
        self._forms: dict[tuple[str, str], int] = {}
        self._bytes = 0
        self._layers = 0
        self._shape: HeadShape | None = None
        self._vocab = 0
        self._table: tuple[str, torch.Tensor] | None = None
        self._identity = torch.arange(MAX_ROWS, dtype=torch.int32, device=device)
        self._angles: dict[Rotary, tuple[torch.Tensor, torch.Tensor]] = {}

    def embed(self, table: RawTensor) -> Value:
        matrix = self._weights.table(table)
        self._count([table], matrix)
        self._table = (table.name, matrix)
        h = self._value("h", matrix.shape[1], torch.float32)

        def step(p: ForwardContext) -> None:
            embed(p.tables.token, matrix, p.buffers.view("h", p.shape.rows, h.width), p.mode)

        self._steps.append(step)
        return h

    def project(self, x: Value, norm: Norm, parts: Sequence[Linear]) -> Value:
        normed = self._norm(x, norm)
        out = self._value("qkv", sum(p.weight.shape[0] for p in parts), torch.float32)
        biases = [p.bias for p in parts if p.bias is not None]
        if biases and len(biases) != len(parts):
            raise ValueError(f"{biases[0].name}: of projections that share an input, all have a bias or none")
        at = 0
        for run in self._weights.runs([p.weight for p in parts]):
            width = sum(t.shape[0] for t in run)
            self._linear(normed, self._matrix(run), out, Epilogue.STORE, (at, width))
            at += width
        bias = torch.cat([self._weights.vector(b) for b in biases]) if biases else None
        return replace(out, bias=bias)

    def rotate_store(
        self, qkv: Value, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> Value:
        shape = HeadShape(heads.heads, heads.kv_heads, heads.head_dim)
        if 2 * len(rotary.frequencies) != shape.dim:
            raise ValueError(f"{2 * len(rotary.frequencies)} of {shape.dim} head dimensions turn; all must on CUDA")
        self._shape = shape
        self._layers = max(self._layers, layer + 1)
        cos, sin = self._turns(rotary)
        gains = None
        eps = 1e-6
        if q_norm is not None and k_norm is not None:
            gains = (self._weights.vector(q_norm.weight), self._weights.vector(k_norm.weight))
            eps = q_norm.eps
        q = self._value("q", heads.q_width, torch.float16)
        bias = qkv.bias

        def step(p: ForwardContext) -> None:
            rotary_kv(
                p.buffers.view("qkv", p.shape.rows, qkv.width),
                p.buffers.view("q", p.shape.rows, q.width),
                p.tables.rows,
                kv_base=p.kv_base,
                k_tensor=2 * layer,
                v_tensor=2 * layer + 1,
                cos=cos,
                sin=sin,
                shape=shape,
                interleaved=rotary.interleaved,
                bias=bias,
                head_gains=gains,
                eps=eps,
                mode=p.mode,
            )

        self._steps.append(step)
        return q

    def attend(self, q: Value, heads: Heads, layer: int) -> Value:
        shape = HeadShape(heads.heads, heads.kv_heads, heads.head_dim)
        out = self._value("seen", q.width, self._weights.dtype)

        def step(p: ForwardContext) -> None:
            queries = p.buffers.view("q", p.shape.rows, q.width)
            seen = p.buffers.view("seen", p.shape.rows, q.width)
            t = p.tables
            k, v = 2 * layer, 2 * layer + 1
            if p.shape.tiles:
                attend_tiles(
                    queries,
                    seen,
                    t.tile_row,
                    tile_rows=t.tile_rows,
                    rows=t.rows,
                    kv_base=p.kv_base,
                    k_tensor=k,
                    v_tensor=v,
                    shape=shape,
                    mode=p.mode,
                )
            if p.shape.single:
                attend_rows(
                    queries,
                    seen,
                    t.single,
                    rows=t.rows,
                    kv_base=p.kv_base,
                    k_tensor=k,
                    v_tensor=v,
                    shape=shape,
                    scratch=p.scratch,
                    splits=p.shape.splits,
                    mode=p.mode,
                )

        self._steps.append(step)
        return out

    def add_linear(self, residual: Value, x: Value, linear: Linear) -> Value:
        if linear.bias is not None:
            raise ValueError(f"{linear.bias.name}: a bias on a product added to the residual is not supported on CUDA")
        self._linear(x, self._matrix([linear.weight]), residual, Epilogue.ADD)
        return residual

    def project_gated(self, x: Value, norm: Norm, gate: Linear, up: Linear) -> Value:
        if gate.bias is not None or up.bias is not None:
            raise ValueError("a bias on a gated projection is not supported on CUDA")
        normed = self._norm(x, norm)
        out = self._value("inner", gate.weight.shape[0], self._weights.dtype)
        self._linear(normed, self._matrix([gate.weight, up.weight]), out, Epilogue.GATED)
        return out

    def head(self, x: Value, norm: Norm, linear: Linear) -> None:
        if linear.bias is not None:
            raise ValueError(f"{linear.bias.name}: a bias on the head is not supported on CUDA")
        w = self._head_matrix(linear.weight)
        gain = self._weights.vector(norm.weight)
        self._vocab = linear.weight.shape[0]
        self._value("last", x.width, self._weights.dtype)
        self._value("logits", self._vocab, torch.float32)
        vocab = self._vocab

        def step(p: ForwardContext) -> None:
            if p.shape.logits:
                last = p.buffers.view("last", p.shape.logits, x.width)
                h = p.buffers.view("h", p.shape.rows, x.width)
                rms_norm(h, p.tables.logit, gain, last, eps=norm.eps, mode=p.mode)
                logits = p.buffers.view("logits", p.shape.logits, vocab)
                height = SKINNY_ROWS if isinstance(w, Packed) else p.shape.logits
                for at in range(0, p.shape.logits, height):
                    _product(p, last[at : at + height], w, logits[at : at + height], Epilogue.STORE)

        self._steps.append(step)

    def finish(self, max_rows: int) -> CudaProgram:
        """The recorded program, for batches of up to `max_rows` rows."""
        if not 1 <= max_rows <= MAX_ROWS:
            raise ValueError(f"max_rows is {max_rows}; 1 to {MAX_ROWS} are possible")
        if self._shape is None or not self._vocab:
            raise ValueError("a program needs attention and a head")
        return CudaProgram(
            self._steps,
            self._buffers,
            shape=self._shape,
            vocab=self._vocab,
            layers=self._layers,
            max_rows=max_rows,
            device=self._device,
            forms=self._forms,
            weight_bytes=self._bytes,
            mode=self._mode,
        )

    def _norm(self, x: Value, norm: Norm) -> Value:
        gain = self._weights.vector(norm.weight)
        out = self._value("normed", x.width, self._weights.dtype)
        identity = self._identity

        def step(p: ForwardContext) -> None:
            n = p.shape.rows
            rms_norm(
                p.buffers.view("h", n, x.width),
                identity[:n],
                gain,
                p.buffers.view("normed", n, x.width),
                eps=norm.eps,
                mode=p.mode,
            )

        self._steps.append(step)
        return out

    def _linear(
        self,
        x: Value,
        w: torch.Tensor | Packed,
        out: Value,
        epilogue: Epilogue,
        columns: tuple[int, int] | None = None,
    ) -> None:
        """Record a product whose outputs are the columns (first, count) of `out`, all by default."""
        first, count = columns if columns is not None else (0, out.width)
        if isinstance(w, Packed):
            self._buffers.declare(UNPACKED, w.n * w.k, self._weights.dtype)

        def step(p: ForwardContext) -> None:
            n = p.shape.rows
            source, target = p.buffers.view(x.buffer, n, x.width), p.buffers.view(out.buffer, n, out.width)
            _product(p, source, w, target[:, first : first + count], epilogue)

        self._steps.append(step)

    def _turns(self, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (positions, pairs) float32, from double-precision angles."""
        if rotary not in self._angles:
            frequencies = torch.tensor(rotary.frequencies, dtype=torch.float64, device=self._device)
            places = torch.arange(self._positions, dtype=torch.float64, device=self._device)
            angle = torch.outer(places, frequencies)
            self._angles[rotary] = (
                (angle.cos() * rotary.magnitude).float(),
                (angle.sin() * rotary.magnitude).float(),
            )
        return self._angles[rotary]

    def _matrix(self, parts: Sequence[RawTensor]) -> torch.Tensor | Packed:
        matrix = self._weights.matrix(parts)
        self._count(parts, matrix)
        return matrix

    def _head_matrix(self, weight: RawTensor) -> torch.Tensor | Packed:
        """The head's matrix: the embedding table where they are one tensor, unless packing makes it smaller to read."""
        shared = self._table is not None and self._table[0] == weight.name
        if self._table is None or not shared:
            return self._matrix([weight])
        if not self._weights.packs(weight):
            return self._table[1]
        matrix = self._weights.matrix([weight])
        self._bytes += matrix.nbytes
        return matrix

    def _count(self, parts: Sequence[RawTensor], matrix: torch.Tensor | Packed) -> None:
        dense = str(self._weights.dtype).removeprefix("torch.")
        runs_as = matrix.format.label if isinstance(matrix, Packed) else dense
        for part in parts:
            key = (str(part.quant_type), runs_as)
            self._forms[key] = self._forms.get(key, 0) + 1
        self._bytes += matrix.nbytes

    def _value(self, name: str, width: int, dtype: torch.dtype) -> Value:
        self._buffers.declare(name, width, dtype)
        return Value(name, width)


def _product(
    p: ForwardContext, x: torch.Tensor, w: torch.Tensor | Packed, out: torch.Tensor, epilogue: Epilogue
) -> None:
    """One product; packed weights are unpacked for batches too large for the skinny kernel, to the same bits."""
    if not isinstance(w, Packed):
        linear(x, w, out, epilogue, mode=p.mode)
    elif x.shape[0] <= SKINNY_ROWS:
        skinny(x, w, out, epilogue, mode=p.mode)
    else:
        dense = p.buffers.view(UNPACKED, 1, w.n * w.k).view(w.n, w.k)
        unpack_rows(w, dense, mode=p.mode)
        linear(x, dense, out, epilogue, segments=w.segments, mode=p.mode, alpha=w.alpha)
