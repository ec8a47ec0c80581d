"""One CUDA GPU through torch and the driver's bindings: its allocator, its memory and its runner."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.execution.cuda.driver import CudaDriver, supported
from engine.execution.cuda.loading import GpuRunner
from engine.execution.cuda.page_stock import DeviceDriver
from engine.execution.cuda.plain import plain_ranges
from engine.execution.devices import Gpu
from engine.memory.kv.ranges import RangeBacking
from engine.models.llama import LlamaConfig
from kernels.quant_types import RawTensor


class TorchAllocator:
    """Torch's allocator of one GPU (implements `engine.execution.cuda.memory.Allocator`)."""

    def __init__(self, index: int) -> None:
        self._index = index

    def free_and_total(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self._index)
        return int(free), int(total)

    def reserved(self) -> int:
        return int(torch.cuda.memory_reserved(self._index))

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._index))

    def empty(self) -> None:
        torch.cuda.empty_cache()


class TorchGpu:
    """A GPU through torch and the driver's bindings (implements `engine.execution.cuda.loading.OpenGpu`)."""

    def __init__(self, gpu: Gpu) -> None:
        self._index = gpu.index
        self._device = torch.device("cuda", gpu.index)
        torch.cuda.set_device(self._device)
        torch.cuda.synchronize()  # makes the primary context current in this thread
        self.allocator = TorchAllocator(gpu.index)

    def driver(self) -> DeviceDriver | str:
        why_not = supported(self._index)
        if why_not is not None:
            return why_not
        return CudaDriver(self._index, torch.cuda.current_stream(self._device).cuda_stream)

    def plain(self) -> RangeBacking:
        return plain_ranges(self._device)

    def runner(
        self, config: LlamaConfig, tensors: Mapping[str, RawTensor], *, max_rows: int, positions: int
    ) -> GpuRunner:
        from engine.execution.cuda.runner import CudaRunner  # brings Triton: only where a GPU is used

        return CudaRunner(config, tensors, device=self._device, max_rows=max_rows, positions=positions)
