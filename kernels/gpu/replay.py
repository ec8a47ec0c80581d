"""A recorded forward on a CUDA device: its buffers and its batches, captured as graphs where a shape comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.gpu.attention import AttentionScratch
from kernels.gpu.batch import NO_ROWS, BatchShape, BatchTables, TableBuffers, plan, warmup_shapes
from kernels.gpu.launch import LaunchMode
from kernels.gpu.rotary import HeadShape
from kernels.gpu.sampling import Choosing, SamplingBuffers, sample_rows
from kernels.gpu.skinny import MAX_ROWS as SKINNY_ROWS
from kernels.program import RowBatch, WeightFormats
from kernels.sampling import GREEDY, SamplingSpec

MAX_GRAPHS = 128
UNPACKED = "unpacked"
"""The buffer that holds one matrix at a time for batches of many rows."""


@dataclass(slots=True)
class ForwardContext:
    """What the recorded steps of one batch work on."""

    shape: BatchShape
    tables: BatchTables
    kv_base: torch.Tensor
    buffers: Buffers
    scratch: AttentionScratch
    mode: LaunchMode


Step = Callable[[ForwardContext], None]
_GraphKey = tuple[BatchShape, LaunchMode] | tuple[int, Choosing, LaunchMode]
"""A batch, or the specs from so many rows of logits."""


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


def _height(buffer: str, shape: BatchShape) -> int:
    """Rows of a buffer that a batch needs."""
    if buffer == UNPACKED:
        return int(shape.rows > SKINNY_ROWS)
    return shape.logits if buffer in ("last", "logits") else shape.rows


class CudaProgram:
    """A recorded forward on a CUDA device (implements `kernels.program.Program`).

    What `warm_up` names is captured before it comes. Otherwise the first batch of a shape runs its kernels one by one,
    the second is captured, later ones are replayed; the bits are the same. Sampling has
    graphs of its own. Buffers grow to what batches need, which drops the captured graphs. Only one thread may call it.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        buffers: Buffers,
        *,
        shape: HeadShape,
        vocab: int,
        layers: int,
        max_rows: int,
        device: torch.device,
        forms: dict[tuple[str, str], int],
        weight_bytes: int,
        mode: LaunchMode,
    ) -> None:
        self.name = f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "triton interpreter"
        self.use_graphs = device.type == "cuda"
        self.mode = mode
        """How the kernels of a batch follow each other; may be changed between batches."""
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
        self._ran: set[tuple[int, int] | Choosing] = set()
        """Rows and logits of batches, and specs, whose kernels have been compiled by running them."""
        self._sampling: SamplingBuffers | None = None
        self._host_logits = torch.empty(0, dtype=torch.float32)

    def run(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        shape = self._prepare(rows, kv_base)
        self._launch(shape)
        count = len(rows.logit_rows)
        out = self._host_rows(count)
        if count:
            out.copy_(self.logits(count), non_blocking=True)
        self._wait()
        return out.numpy()

    def run_and_sample(
        self, rows: RowBatch, kv_base: NDArray[np.uint64], specs: Sequence[SamplingSpec | None]
    ) -> list[NDArray[np.float32] | int]:
        """Compute a batch as `run` does and sample on the device: for each of `rows.logit_rows`, its spec's token, -1
        where a logit is no number or the largest is not finite; where it has none, its logits, a view that the next
        batch overwrites. One wait for both; no other row's logits are copied."""
        if len(specs) != len(rows.logit_rows):
            raise ValueError(f"{len(specs)} specs for {len(rows.logit_rows)} rows of logits")
        shape = self._prepare(rows, kv_base)
        if not specs:
            self._launch(shape)
            self._wait()
            return []
        held = self._sampling_buffers(shape.logits)
        held.upload(specs)
        self._launch(shape)
        choosing = Choosing.of(specs)
        work = partial(sample_rows, self.logits(shape.logits), held, choosing, self.mode)
        self._ran.add(choosing)
        self._replay((shape.logits, choosing, self.mode), work)
        ids = held.download(len(specs))
        asked = [i for i, d in enumerate(specs) if d is None]
        host = self._host_rows(len(asked))
        for to, i in zip(host, asked, strict=True):
            to.copy_(self.logits(i + 1)[i], non_blocking=True)
        self._wait()
        out: list[NDArray[np.float32] | int] = list(ids.tolist())
        for to, i in zip(host, asked, strict=True):
            out[i] = to.numpy()
        return out

    def warm_up(self, kv_base: NDArray[np.uint64], window: int) -> None:
        """Make room for, and capture, the batches of an engine whose slots lie at `kv_base` and hold up to `window`
        rows: no round then waits for a capture, which takes as long as several rounds. Each is replayed once over
        padding, since the first replay brings a graph to the device. What no batch has compiled yet is left out. Does
        nothing where batches are not captured."""
        if not self.use_graphs:
            return
        every = warmup_shapes(len(kv_base), window, self._tables.max_rows)
        shapes = [s for s in every if (s.rows, max(1, s.logits)) in self._ran]
        if not shapes:
            return
        specs = [c for c in Choosing if c in self._ran or Choosing.SEARCH in self._ran]
        self._place(kv_base)
        for shape in shapes:
            self._reserve(shape)
        counts = sorted({shape.logits for shape in shapes if shape.logits})
        held = self._sampling_buffers(max(counts, default=1))
        held.upload([GREEDY] * held.rows)
        self._host_rows(held.rows)
        for shape in shapes:
            self._tables.upload(NO_ROWS, shape, NO_ROWS.slot, [], spare=len(kv_base))
            self._warm_up((shape, self.mode), partial(self.enqueue, shape))
        for rows in counts:
            for choosing in specs:
                self._warm_up(
                    (rows, choosing, self.mode), partial(sample_rows, self.logits(rows), held, choosing, self.mode)
                )

    def _warm_up(self, key: _GraphKey, enqueue: Callable[[], None]) -> None:
        if key not in self._graphs and len(self._graphs) < MAX_GRAPHS:
            self._capture(key, enqueue).replay()
        self._wait()

    def forms(self) -> WeightFormats:
        return dict(sorted(self._forms.items()))

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def workspace_bytes(self) -> int:
        sampling = 0 if self._sampling is None else self._sampling.nbytes
        return self._buffers.nbytes + self._scratch.nbytes + self._tables.nbytes + sampling

    def logits(self, count: int) -> torch.Tensor:
        """The last batch's first `count` rows of logits on the device, which the next batch overwrites."""
        return self._buffers.view("logits", count, self._vocab)

    def enqueue(self, shape: BatchShape) -> None:
        """Launch every step of a batch whose tables are on the device, on the current stream."""
        work = ForwardContext(shape, self._tables.views(shape), self._kv_base, self._buffers, self._scratch, self.mode)
        for step in self._steps:
            step(work)

    def _prepare(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> BatchShape:
        """Room and tables for a batch."""
        shape, single, tiles = plan(rows)
        if shape.rows > self._tables.max_rows:
            raise ValueError(f"a batch of {rows.n} rows; up to {self._tables.max_rows} are possible")
        self._place(kv_base)
        self._reserve(shape)
        self._tables.upload(rows, shape, single, tiles, spare=len(kv_base))
        return shape

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _launch(self, shape: BatchShape) -> None:
        """Compute a prepared batch."""
        self._ran.add((shape.rows, shape.logits))
        self._replay((shape, self.mode), partial(self.enqueue, shape))

    def _replay(self, key: _GraphKey, enqueue: Callable[[], None]) -> None:
        """Run what `enqueue` launches: one by one the first time, then as a graph."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
        elif self.use_graphs and key in self._seen and len(self._graphs) < MAX_GRAPHS:
            self._capture(key, enqueue).replay()
        else:
            self._seen.add(key)
            enqueue()

    def _capture(self, key: _GraphKey, enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Thread-local: the pool's helper thread maps pages meanwhile, which a capture must not forbid it.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            enqueue()
        self._graphs[key] = graph
        return graph

    def _sampling_buffers(self, rows: int) -> SamplingBuffers:
        if self._sampling is None or self._sampling.rows < rows:
            self._sampling = SamplingBuffers(rows, self._vocab, self._device)
            self._drop_graphs()
        return self._sampling

    def _host_rows(self, count: int) -> torch.Tensor:
        """Pinned room for rows of logits."""
        if self._host_logits.numel() < count * self._vocab:
            pinned = self._device.type == "cuda"
            self._host_logits = torch.empty(count * self._vocab, dtype=torch.float32, pin_memory=pinned)
        return self._host_logits[: count * self._vocab].view(count, self._vocab)

    def _place(self, kv_base: NDArray[np.uint64]) -> None:
        """Keep the slots' addresses on the device, and after them a spare slot that padding rows write to."""
        if self._kv_seen is not None and np.array_equal(self._kv_seen, kv_base):
            return
        spare = np.full((1, kv_base.shape[1]), self._spare.data_ptr(), np.uint64)
        self._kv_base = torch.from_numpy(np.concatenate([kv_base, spare]).view(np.int64)).to(self._device)
        self._kv_seen = kv_base.copy()
        self._drop_graphs()

    def _reserve(self, shape: BatchShape) -> None:
        moved = False
        for name in self._buffers.names:
            moved |= self._buffers.reserve(name, _height(name, shape))
        if shape.single * shape.splits > self._scratch.entries * self._scratch.splits:
            self._scratch = AttentionScratch(shape.single, shape.splits, self._shape, self._device)
            moved = True
        if moved:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        self._graphs.clear()
        self._seen.clear()
