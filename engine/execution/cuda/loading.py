"""A model on a CUDA GPU: whether it fits, the upload of its weights, and the memory that its KV will lie in.

Nothing here imports torch: a process that serves on the CPU starts without it (`system.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.execution.cuda.memory import Allocator, AllocatorBlocks, GpuProbe, KvMemory
from engine.execution.cuda.page_stock import DeviceDriver, PageStock
from engine.execution.cuda.vmm import device_ranges
from engine.execution.devices import Gpu, Gpus, UnusableDevice
from engine.execution.runner import Runner
from engine.memory.kv.ranges import RangeBacking
from engine.memory.probe import MemoryReading
from engine.memory.sizes import size
from engine.models.llama import LlamaConfig
from engine.protocol import Loading, WeightFormat
from kernels.gpu.tiles import row_counts
from kernels.quant_types import QuantType, RawTensor

MAX_ROWS = 512
"""Rows of a prompt chunk where no setting names them: a GPU reads many rows as fast as few."""

_UNPACK_TABLE = 14
"""Bytes that a value of the embedding table takes for a moment while it is unpacked: the file's, float32 terms and the
result."""
_PACK_CHUNK = (1 << 24) * 48
"""Bytes at most that packing takes for a moment beside the file's and the packed ones: quants as integers."""
_PACKED_BITS = {
    QuantType.Q4_0: 5.0, QuantType.Q4_1: 5.0, QuantType.Q4_K: 5.0,
    QuantType.Q5_K: 9.0, QuantType.Q6_K: 9.0, QuantType.Q8_0: 8.5,
}  # fmt: skip
"""Bits of a packed value; forms not named here are held in 16."""

Progress = Callable[[Loading], None]


class GpuRunner(Runner, Protocol):
    """A runner with what `/health` says of it."""

    backend: str
    backend_reason: str

    def warm_up(self, slots: int, rows: int) -> None:
        """Compile what a pass of `rows` rows in each of `slots` slots needs."""
        ...

    def weight_bytes(self) -> int: ...

    def weight_forms(self) -> list[WeightFormat]: ...


class OpenGpu(Protocol):
    """One GPU, its context current in the engine's thread."""

    @property
    def allocator(self) -> Allocator: ...

    def driver(self) -> DeviceDriver | str:
        """The virtual memory calls, or why there are none."""
        ...

    def plain(self) -> RangeBacking:
        """Plain allocations, where there are none."""
        ...

    def runner(
        self, config: LlamaConfig, tensors: Mapping[str, RawTensor], *, max_rows: int, positions: int
    ) -> GpuRunner: ...


class CudaSystem(Protocol):
    """The GPUs of this box."""

    def look(self) -> Gpus: ...

    def open(self, gpu: Gpu) -> OpenGpu:
        """Raises UnusableDevice."""
        ...


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A model on a GPU."""

    runner: GpuRunner
    memory: KvMemory


def load_on_gpu(
    opened: OpenGpu,
    gpu: Gpu,
    config: LlamaConfig,
    tensors: Mapping[str, RawTensor],
    progress: Progress,
    *,
    parallel: int,
    max_rows: int,
    positions: int,
) -> OnGpu:
    """Put the weights on the GPU, compile the kernels of its passes, and prepare the KV's memory.

    Raises UnusableDevice where the GPU has not the memory, or its kernels cannot run the model.
    """
    allocator = opened.allocator
    baseline = GpuProbe(allocator).read()
    _refuse_size(gpu, tensors, baseline.available)
    try:
        runner = opened.runner(config, tensors, max_rows=max_rows, positions=positions)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise _refusal(gpu, baseline, error) from error
    sizes = passes_to_compile(parallel, max_rows)
    for done, (slots, rows) in enumerate(sizes):
        progress(Loading(stage="compiling kernels", done_bytes=done, total_bytes=len(sizes), eta_s=None))
        try:
            runner.warm_up(slots, rows)
        except Exception as error:
            raise _refusal(gpu, baseline, error) from error
    allocator.empty()
    return OnGpu(runner, gpu_memory(opened, gpu, baseline))


def passes_to_compile(parallel: int, max_rows: int) -> list[tuple[int, int]]:
    """(slots, rows a slot) of passes: among their kernels every later pass finds its own."""
    return [(n, 1) for n in _powers(parallel)] + [(1, min(n, max_rows)) for n in row_counts(max_rows)[1:]]


def gpu_memory(opened: OpenGpu, gpu: Gpu, baseline: MemoryReading) -> KvMemory:
    """The GPU's memory as the KV will lie in it; `baseline` is what it had before anything was loaded."""
    allocator = opened.allocator
    driver = opened.driver()
    blocks = AllocatorBlocks(allocator)
    if isinstance(driver, str):
        return KvMemory(gpu.device, GpuProbe(allocator), baseline, opened.plain(), blocks, whole_windows=driver)
    stock = PageStock(driver)
    return KvMemory(gpu.device, GpuProbe(allocator, stock), baseline, device_ranges(stock), blocks)


def _refusal(gpu: Gpu, before: MemoryReading, error: Exception) -> UnusableDevice:
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return UnusableDevice(
            f"{gpu.device} ({gpu.name}) ran out of memory while the model was put there: "
            f"{size(before.available)} of {size(before.total)} was available before; use a smaller model or cpu"
        )
    return UnusableDevice(f"{gpu.device} ({gpu.name}) cannot run this model: {error}")


def _powers(most: int) -> list[int]:
    """1, 2, 4 ... up to `most`, and `most`."""
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def _refuse_size(gpu: Gpu, tensors: Mapping[str, RawTensor], available: int) -> None:
    weights = room = 0
    for name in tensors:
        tensor = tensors[name]
        values = math.prod(tensor.shape)
        packed = round(values * _PACKED_BITS.get(tensor.quant_type, 0) / 8)
        table = name == "token_embd.weight"
        if len(tensor.shape) == 1:
            weights += 4 * values
            continue
        if table or not packed:
            weights += 2 * values
            room = max(room, _UNPACK_TABLE * values)
        if packed and not (table and "output.weight" in tensors):
            weights += packed
            # A matrix and its neighbours are packed one by one and then joined.
            room = max(room, min(48 * values, _PACK_CHUNK) + 3 * packed)
    if weights + room > available:
        fits = max(0, available - room)
        raise UnusableDevice(
            f"{gpu.device} ({gpu.name}) has {size(available)} available of {size(gpu.total)}, and this model takes "
            f"{size(weights)} of weights there and up to {size(room)} more while they are unpacked: weights of "
            f"{size(fits)} would fit"
        )
