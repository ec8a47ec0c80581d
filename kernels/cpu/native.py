"""The native backend: records a forward as the compiled kernels' operations and runs a batch in one call."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cpu import abi
from kernels.invariance import RowVarianceError
from kernels.program import Heads, Linear, Norm, Rotary, RowBatch, WeightFormats, vector
from kernels.quant_types import BLOCKS, QuantType, RawTensor

ALIGN = 64
PARTIAL_FLOATS = 4 << 20
"""Room for attention splits computed side by side, in floats; longer batches compute them one after another."""
CHECK_ROWS = (2, 3, 4, 5, 16)

RUNS_AS: dict[QuantType, str] = {
    QuantType.F32: "float32",
    QuantType.F16: "float16, float32 products",
    QuantType.BF16: "bfloat16, float32 products",
    QuantType.Q4_0: "int4 group 32, int8 activations",
    QuantType.Q4_1: "int4 group 32, int8 activations",
    QuantType.Q8_0: "int8 group 32, int8 activations",
    QuantType.Q4_K: "int4 group 32 of 256, int8 activations",
    QuantType.Q5_K: "int5 group 32 of 256, int8 activations",
    QuantType.Q6_K: "int6 group 16 of 256, int8 activations",
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value: one float32 row of `width` for each row of the batch."""

    role: str
    width: int


@dataclass(slots=True)
class _Step:
    """One operation as recorded, before memory exists."""

    kind: str
    source: Buffer | None = None
    target: Buffer | None = None
    linears: tuple[Linear, ...] = ()
    norm: Norm | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rotary: Rotary | None = None
    heads: Heads | None = None
    layer: int = 0


class Constants:
    """Small read-only arrays that operations point at, kept alive."""

    def __init__(self) -> None:
        self._held: list[NDArray[Any]] = []
        self._by_name: dict[str, int] = {}

    def address(self, tensor: RawTensor | None) -> int | None:
        """Address of a vector as float32; None for none. Each tensor is converted once."""
        if tensor is None:
            return None
        if tensor.name not in self._by_name:
            self._by_name[tensor.name] = self.hold(vector(tensor))
        return self._by_name[tensor.name]

    def hold(self, values: NDArray[np.float32] | NDArray[np.float64]) -> int:
        self._held.append(np.ascontiguousarray(values))
        return int(self._held[-1].ctypes.data)


class Arena:
    """One anonymous mapping for all packed weights, on huge pages where the system gives them."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Private: huge-page advice is honoured for private memory alone on most systems.
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # A kernel without transparent huge pages refuses; small pages serve.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, size: int) -> int:
        """Address of the next `size` bytes."""
        address = int(self._bytes.ctypes.data) + self._used
        self._used += _padded(size)
        return address


class ThreadPool:
    """The thread pool of one program; its threads end with this object."""

    def __init__(self, lib: ctypes.CDLL, threads: int) -> None:
        handle = lib.tandem_pool_new(threads)
        if not handle:
            raise ValueError(f"threads is {threads}; the system does not start that many")
        self.handle = handle
        self._end = weakref.finalize(self, lib.tandem_pool_free, handle)


@dataclass(slots=True)
class NativeRecorder:
    """Implements `kernels.cpu.backend.Recorder`."""

    lib: ctypes.CDLL
    threads: int
    max_rows: int
    _steps: list[_Step] = field(default_factory=list)
    _tensors: dict[str, RawTensor] = field(default_factory=dict)
    _rotaries: list[Rotary] = field(default_factory=list)

    def embed(self, table: RawTensor) -> Buffer:
        out = Buffer("hidden", table.shape[1])
        self._steps.append(_Step("embed", target=out, linears=(self._linear(Linear(table)),)))
        return out

    def project(self, x: Buffer, norm: Norm, parts: Sequence[Linear]) -> Buffer:
        if not 1 <= len(parts) <= 3:
            raise ValueError(f"{len(parts)} parts in one projection; 1 to 3 are possible")
        out = Buffer("projected", sum(p.weight.shape[0] for p in parts))
        self._steps.append(
            _Step("project", x, out, linears=tuple(self._linear(p) for p in parts), norm=self._norm(norm, x.width))
        )
        return out

    def rotate_store(
        self, qkv: Buffer, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> Buffer:
        if heads.head_dim % 8 or heads.head_dim > abi.MAX_HEAD_DIM:
            raise ValueError(f"head_dim is {heads.head_dim}; multiples of 8 up to {abi.MAX_HEAD_DIM} are possible")
        if rotary not in self._rotaries:
            self._rotaries.append(rotary)
        angles = self._angles(rotary)
        if q_norm is not None and k_norm is not None and q_norm.eps != k_norm.eps:
            raise ValueError(f"{q_norm.weight.name} and {k_norm.weight.name} have different eps")
        self._steps.append(
            _Step(
                "rotate_store",
                angles,
                qkv,
                q_norm=self._norm(q_norm, heads.head_dim) if q_norm else None,
                k_norm=self._norm(k_norm, heads.head_dim) if k_norm else None,
                rotary=rotary,
                heads=heads,
                layer=layer,
            )
        )
        return qkv

    def attend(self, q: Buffer, heads: Heads, layer: int) -> Buffer:
        out = Buffer("attended", heads.q_width)
        self._steps.append(_Step("attend", q, out, heads=heads, layer=layer))
        return out

    def add_linear(self, residual: Buffer, x: Buffer, linear: Linear) -> Buffer:
        self._steps.append(_Step("add_linear", x, residual, linears=(self._linear(linear),)))
        return residual

    def project_gated(self, x: Buffer, norm: Norm, gate: Linear, up: Linear) -> Buffer:
        if gate.bias is not None or up.bias is not None:
            raise ValueError(f"{gate.weight.name}: a gated projection takes no bias")
        out = Buffer("gated", gate.weight.shape[0])
        linears = (self._linear(gate), self._linear(up))
        self._steps.append(_Step("project_gated", x, out, linears=linears, norm=self._norm(norm, x.width)))
        return out

    def head(self, x: Buffer, norm: Norm, linear: Linear) -> None:
        self._steps.append(_Step("head", x, linears=(self._linear(linear),), norm=self._norm(norm, x.width)))

    def finish(self) -> NativeProgram:
        angles = [_Step("angles", target=self._angles(r), rotary=r) for r in self._rotaries]
        self._steps[:0] = angles
        return NativeProgram(self.lib, self.threads, self.max_rows, self._steps, list(self._tensors.values()))

    def _angles(self, rotary: Rotary) -> Buffer:
        return Buffer(f"angles {self._rotaries.index(rotary)}", 2 * len(rotary.frequencies))

    def _linear(self, linear: Linear) -> Linear:
        weight = linear.weight
        if len(weight.shape) != 2:
            raise ValueError(f"{weight.name}: shape {weight.shape}; a matrix is needed")
        if weight.shape[1] % BLOCKS[weight.quant_type].values:
            raise ValueError(f"{weight.name}: rows of {weight.shape[1]} values in form {weight.quant_type}")
        self._tensors[weight.name] = weight
        if linear.bias is not None:
            self._tensors[linear.bias.name] = linear.bias
        return linear

    def _norm(self, norm: Norm, width: int) -> Norm:
        if width % 8:
            raise ValueError(f"{norm.weight.name}: width {width}; a multiple of 8 is needed")
        self._tensors[norm.weight.name] = norm.weight
        return norm


class NativeProgram:
    """Implements `kernels.program.Program`."""

    def __init__(
        self, lib: ctypes.CDLL, threads: int, max_rows: int, steps: list[_Step], tensors: list[RawTensor]
    ) -> None:
        self.name = f"native {lib.tandem_instructions().decode()}"
        self._lib = lib
        self._max_rows = max_rows
        self._pool = ThreadPool(lib, threads)
        self._constants = Constants()
        matrices = [t for t in tensors if len(t.shape) == 2]
        sizes = {t.name: int(lib.tandem_matrix_bytes(abi.QUANT_CODES[t.quant_type], *t.shape)) for t in matrices}
        self._arena = Arena(sum(_padded(s) for s in sizes.values()))
        self._packed = {t.name: self._pack(t, sizes[t.name]) for t in matrices}
        self._vocab = next((s.linears[0].weight.shape[0] for s in steps if s.kind == "head"), 0)
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self._logits = np.zeros((0, self._vocab), np.float32)
        self._workspace = self._make_workspace(steps)
        self._ops = (abi.Op * len(steps))(*(self._op(s) for s in steps))
        self.op_seconds = np.zeros(len(abi.OP_NAMES), np.float64)
        """Seconds in each kind of operation (`abi.OP_NAMES`) since the start, on the calling thread."""
        counts = Counter(t.quant_type for t in tensors)
        self._forms = {(str(held), RUNS_AS[held]): n for held, n in sorted(counts.items())}
        self._check_rows(matrices)

    def run(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        if rows.n > self._max_rows:
            raise ValueError(f"a batch of {rows.n} rows; at most {self._max_rows} (max_rows) are possible")
        wanted = len(rows.logit_rows)
        if wanted > len(self._logits):
            self._logits = np.empty((max(wanted, 8), self._vocab), np.float32)
        arrays = (
            rows.slot,
            rows.token,
            rows.position,
            rows.kv_row,
            rows.prefix,
            rows.ancestor_start,
            rows.ancestors,
            rows.logit_rows,
        )
        if any(a.dtype != np.int32 or not a.flags.c_contiguous for a in arrays):
            raise ValueError("the arrays of a batch are contiguous int32")
        job = abi.Batch(
            rows.n,
            wanted,
            *(a.ctypes.data for a in arrays),
            kv_base.ctypes.data,
            self._logits.ctypes.data,
            self.op_seconds.ctypes.data,
            kv_base.shape[1],
        )
        self._call(self._ops, job)
        return self._logits[:wanted]

    def forms(self) -> WeightFormats:
        return self._forms

    def weight_bytes(self) -> int:
        return self._arena.size

    def workspace_bytes(self) -> int:
        return sum(b.nbytes for b in self._buffers.values()) + self._logits.nbytes

    def poison(self) -> None:
        """Fill the first MiB of every transient buffer with NaN bytes, so that a test of a small batch sees a value
        read before it was written."""
        for buffer in self._buffers.values():
            buffer[: 1 << 20].fill(0xFF)
        self._logits.fill(np.nan)

    def _call(self, ops: ctypes.Array[abi.Op], job: abi.Batch) -> None:
        if self._lib.tandem_run(self._pool.handle, ops, len(ops), ctypes.byref(job), ctypes.byref(self._workspace)):
            raise MemoryError("no memory for the plan of a batch")

    def _pack(self, tensor: RawTensor, size: int) -> int:
        address = self._arena.take(size)
        data = tensor.data
        spec = BLOCKS[tensor.quant_type]
        if data.shape != (tensor.shape[0], tensor.shape[1] // spec.values * spec.bytes):
            raise ValueError(f"{tensor.name}: {data.shape} bytes for {tensor.shape} values of {tensor.quant_type}")
        if data.strides[1] != 1:
            raise ValueError(f"{tensor.name}: its rows are not contiguous")
        self._lib.tandem_pack(
            self._pool.handle,
            abi.QUANT_CODES[tensor.quant_type],
            data.ctypes.data,
            data.strides[0],
            *tensor.shape,
            address,
        )
        return address

    def _buffer(self, role: str, size: int) -> int:
        """Address of a buffer of at least `size` bytes; one a role."""
        if role not in self._buffers:
            raw = np.empty(size + ALIGN, np.uint8)
            start = -raw.ctypes.data % ALIGN
            self._buffers[role] = raw[start : start + size]
        return int(self._buffers[role].ctypes.data)

    def _make_workspace(self, steps: list[_Step]) -> abi.Workspace:
        widest: dict[str, int] = {}
        for step in steps:
            for value in (step.source, step.target):
                if value is not None:
                    widest[value.role] = max(widest.get(value.role, 0), value.width)
        for role, width in widest.items():
            self._buffer(role, self._max_rows * width * 4)
        inputs = max((linear.weight.shape[1] for s in steps for linear in s.linears), default=32)
        rows = max(self._max_rows, max(CHECK_ROWS))
        cells = max((s.heads.heads * (s.heads.head_dim + 2) for s in steps if s.heads), default=0)
        partial = PARTIAL_FLOATS if cells else 0
        return abi.Workspace(
            self._buffer("normalised", rows * inputs * 4),
            self._buffer("quantised", rows * (inputs // 32) * abi.QUANTISED_BLOCK_BYTES),
            self._buffer("splits", partial * 4),
            partial,
        )

    def _matrix(self, linear: Linear) -> abi.Matrix:
        weight = linear.weight
        bias = self._constants.address(linear.bias)
        return abi.Matrix(self._packed[weight.name], bias, abi.QUANT_CODES[weight.quant_type], *weight.shape)

    def _op(self, step: _Step) -> abi.Op:
        op = abi.Op(kind=abi.OP_CODES[step.kind], matrices=len(step.linears))
        for i, linear in enumerate(step.linears):
            op.m[i] = self._matrix(linear)
        if step.source is not None:
            op.input, op.in_stride = self._buffers[step.source.role].ctypes.data, step.source.width
        if step.target is not None:
            op.out, op.out_stride = self._buffers[step.target.role].ctypes.data, step.target.width
        for norm in (step.norm, step.q_norm):
            if norm is not None:
                op.eps = norm.eps
        op.norm = self._constants.address(step.norm.weight if step.norm else None)
        op.q_norm = self._constants.address(step.q_norm.weight if step.q_norm else None)
        op.k_norm = self._constants.address(step.k_norm.weight if step.k_norm else None)
        if step.rotary is not None:
            op.frequencies = self._constants.hold(np.array(step.rotary.frequencies, np.float64))
            op.magnitude = step.rotary.magnitude
            op.pairs = len(step.rotary.frequencies)
            op.interleaved = int(step.rotary.interleaved)
        if step.heads is not None:
            op.heads, op.kv_heads, op.head_dim = step.heads.heads, step.heads.kv_heads, step.heads.head_dim
            op.q_scale = step.heads.head_dim**-0.5
            op.k_tensor, op.v_tensor = 2 * step.layer, 2 * step.layer + 1
        return op

    def _check_rows(self, matrices: list[RawTensor]) -> None:
        """Compare the product of a row alone with the same row's among others, for one matrix of each shape and form.

        Raises RowVarianceError where any bit differs."""
        checked: set[tuple[QuantType, tuple[int, ...]]] = set()
        random = np.random.default_rng(0)
        for tensor in matrices:
            if (tensor.quant_type, tensor.shape) in checked:
                continue
            checked.add((tensor.quant_type, tensor.shape))
            n, k = tensor.shape
            x = random.standard_normal((max(CHECK_ROWS), k)).astype(np.float32)
            alone = np.concatenate([self._product(tensor, x[i : i + 1]) for i in range(max(CHECK_ROWS))])
            for rows in CHECK_ROWS:
                if not np.array_equal(self._product(tensor, x[:rows]).view(np.uint32), alone[:rows].view(np.uint32)):
                    raise RowVarianceError(tensor.quant_type, n, k, rows)

    def _product(self, tensor: RawTensor, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x W^T through the kernels, shape (rows, outputs)."""
        out = np.zeros((len(x), tensor.shape[0]), np.float32)
        op = abi.Op(kind=abi.OP_CODES["add_linear"], matrices=1, in_stride=x.shape[1], out_stride=out.shape[1])
        op.m[0] = self._matrix(Linear(tensor))
        op.input, op.out = x.ctypes.data, out.ctypes.data
        self._call((abi.Op * 1)(op), _rows_only(len(x)))
        return out


def _rows_only(n: int) -> abi.Batch:
    """A batch for operations that look at no slot: `tandem_run` plans attention from position, path and prefix."""
    zeros = _ZEROS.ctypes.data
    return abi.Batch(n, 0, zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros, None, None, None, 0)


_ZEROS = np.zeros(max(CHECK_ROWS) + 1, np.int32)


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
