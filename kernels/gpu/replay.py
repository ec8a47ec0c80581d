"""A recorded forward on a CUDA device: its buffers and its passes, captured as graphs where a shape comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.gpu.argmax import ArgmaxScratch, argmax
from kernels.gpu.attention import AttentionScratch
from kernels.gpu.launch import LaunchMode, LaunchPlan
from kernels.gpu.passes import PassShape, PassTables, TableBuffers, plan
from kernels.gpu.rotary import HeadShape
from kernels.gpu.skinny import MAX_ROWS as SKINNY_ROWS
from kernels.program import FormUse, PassRows

MAX_GRAPHS = 64
UNPACKED = "unpacked"
"""The buffer that holds one matrix at a time for passes of many rows."""


@dataclass(slots=True)
class Pass:
    """What the recorded steps of one pass work on."""

    shape: PassShape
    tables: PassTables
    kv_base: torch.Tensor
    buffers: Buffers
    scratch: AttentionScratch
    mode: LaunchMode


Step = Callable[[Pass], None]
_GraphKey = tuple[PassShape, bool, LaunchMode]


class Buffers:
    """Activations by name, wide enough for their widest use and grown to the most rows seen."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._widths: dict[str, tuple[int, torch.dtype]] = {}
        self._held: dict[str, torch.Tensor] = {}

    def declare(self, name: str, width: int, dtype: torch.dtype) -> None:
        known = self._widths.get(name, (0, dtype))
        self._widths[name] = (max(width, known[0]), dtype)

    def reserve(self, name: str, rows: int) -> bool:
        """Hold at least `rows` rows; True where the buffer moved."""
        width, dtype = self._widths[name]
        held = self._held.get(name)
        if held is not None and held.shape[0] >= rows * width:
            return False
        self._held[name] = torch.zeros(rows * width, dtype=dtype, device=self._device)
        return True

    def view(self, name: str, rows: int, width: int) -> torch.Tensor:
        return self._held[name][: rows * width].view(rows, width)

    def dtype(self, name: str) -> torch.dtype:
        return self._widths[name][1]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._widths)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self._held.values())


def _height(buffer: str, shape: PassShape) -> int:
    """Rows of a buffer that a pass needs."""
    if buffer == UNPACKED:
        return int(shape.rows > SKINNY_ROWS)
    return shape.logits if buffer in ("last", "logits") else shape.rows


class CudaProgram:
    """A recorded forward on a CUDA device (implements `kernels.program.Program`).

    The first pass of a shape runs its kernels one by one, the second is captured, later ones are replayed; the bits are
    the same. Buffers grow to what passes need, which drops the captured graphs. Only one thread may call it.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        buffers: Buffers,
        shape: HeadShape,
        vocab: int,
        layers: int,
        max_rows: int,
        device: torch.device,
        forms: dict[tuple[str, str], int],
        weight_bytes: int,
        launches: LaunchPlan,
    ) -> None:
        self.name = f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "triton interpreter"
        self.use_graphs = device.type == "cuda"
        self.launches = launches
        """How passes are launched; may be changed between them."""
        self._steps = tuple(steps)
        self._buffers = buffers
        self._shape = shape
        self._vocab = vocab
        self._layers = layers
        self._device = device
        self._forms = forms
        self._weight_bytes = weight_bytes
        self._tables = TableBuffers(max_rows, device)
        self._spare = torch.zeros(shape.kv_heads * shape.dim, dtype=torch.float16, device=device)
        self._kv_base = torch.zeros((0, 2 * layers), dtype=torch.int64, device=device)
        self._kv_seen: NDArray[np.uint64] | None = None
        self._scratch = AttentionScratch(0, 0, shape, device)
        self._seen: set[_GraphKey] = set()
        self._graphs: dict[_GraphKey, torch.cuda.CUDAGraph] = {}
        self._argmax: ArgmaxScratch | None = None
        self._best = torch.empty(0, dtype=torch.int32, device=device)
        self._host_best = torch.empty(0, dtype=torch.int32)
        self._host_logits = torch.empty(0, dtype=torch.float32)

    def run(self, rows: PassRows, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        shape = self._prepare(rows, kv_base)
        self._launch(shape, choose=False)
        count = len(rows.logit_rows)
        out = self._host_logits[: count * self._vocab].view(count, self._vocab)
        if count:
            out.copy_(self._buffers.view("logits", shape.logits, self._vocab)[:count], non_blocking=True)
        self._wait()
        return out.numpy()

    def run_best(self, rows: PassRows, kv_base: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Compute a pass as `run` does and choose on the device: the lowest id of the largest logit of each of
        `rows.logit_rows`, -1 where that is not finite. A view that the next pass overwrites."""
        shape = self._prepare(rows, kv_base)
        if self._argmax is None or self._best.numel() < shape.logits:
            self._best = torch.zeros(shape.logits, dtype=torch.int32, device=self._device)
            self._host_best = torch.zeros(shape.logits, dtype=torch.int32, pin_memory=self._device.type == "cuda")
            self._argmax = ArgmaxScratch(shape.logits, self._vocab, self._device)
            self._drop_graphs()
        self._launch(shape, choose=True)
        count = len(rows.logit_rows)
        self._host_best[:count].copy_(self._best[:count], non_blocking=True)
        self._wait()
        return self._host_best[:count].numpy()

    def forms(self) -> list[FormUse]:
        return [FormUse(file, runs_as, tensors) for (file, runs_as), tensors in sorted(self._forms.items())]

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def workspace_bytes(self) -> int:
        return self._buffers.nbytes + self._scratch.nbytes + self._tables.nbytes

    def logits(self, count: int) -> torch.Tensor:
        """The last pass's first `count` rows of logits on the device, which the next pass overwrites."""
        return self._buffers.view("logits", count, self._vocab)

    def enqueue(self, shape: PassShape) -> None:
        """Launch every step of a pass whose tables are on the device, on the current stream."""
        mode = self.launches.mode(shape.rows)
        work = Pass(shape, self._tables.views(shape), self._kv_base, self._buffers, self._scratch, mode)
        for step in self._steps:
            step(work)

    def _prepare(self, rows: PassRows, kv_base: NDArray[np.uint64]) -> PassShape:
        """Room and tables for a pass."""
        shape, single, tiles = plan(rows)
        if shape.rows > self._tables.max_rows:
            raise ValueError(f"a pass of {rows.n} rows; up to {self._tables.max_rows} are possible")
        self._place(kv_base)
        self._reserve(shape)
        self._tables.upload(rows, shape, single, tiles, spare=len(kv_base))
        return shape

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _launch(self, shape: PassShape, *, choose: bool) -> None:
        """Compute a prepared pass, and the largest logits' ids where `choose`."""
        key = (shape, choose, self.launches.mode(shape.rows))
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
        elif self.use_graphs and key in self._seen and len(self._graphs) < MAX_GRAPHS:
            graph = torch.cuda.CUDAGraph()
            # Thread-local: the pool's helper thread maps pages meanwhile, which a capture must not forbid it.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._enqueue(shape, choose=choose)
            self._graphs[key] = graph
            graph.replay()
        else:
            self._seen.add(key)
            self._enqueue(shape, choose=choose)

    def _enqueue(self, shape: PassShape, *, choose: bool) -> None:
        self.enqueue(shape)
        if choose and shape.logits and self._argmax is not None:
            argmax(self.logits(shape.logits), self._best[: shape.logits], self._argmax, self.launches.mode(shape.rows))

    def _place(self, kv_base: NDArray[np.uint64]) -> None:
        """Keep the slots' addresses on the device, and after them a spare slot that padding rows write to."""
        if self._kv_seen is not None and np.array_equal(self._kv_seen, kv_base):
            return
        spare = np.full((1, kv_base.shape[1]), self._spare.data_ptr(), np.uint64)
        self._kv_base = torch.from_numpy(np.concatenate([kv_base, spare]).view(np.int64)).to(self._device)
        self._kv_seen = kv_base.copy()
        self._drop_graphs()

    def _reserve(self, shape: PassShape) -> None:
        moved = False
        for name in self._buffers.names:
            moved |= self._buffers.reserve(name, _height(name, shape))
        if shape.single * shape.splits > self._scratch.entries * self._scratch.splits:
            self._scratch = AttentionScratch(shape.single, shape.splits, self._shape, self._device)
            moved = True
        if self._host_logits.numel() < shape.logits * self._vocab:
            self._host_logits = torch.empty(
                shape.logits * self._vocab, dtype=torch.float32, pin_memory=self._device.type == "cuda"
            )
        if moved:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        self._graphs.clear()
        self._seen.clear()
