"""A GPU whose memory is the host's and whose kernels are the CPU's: what loading and serving on a GPU need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from engine.execution.cpu_runner import CpuRunner
from engine.execution.cuda.loading import GpuRunner
from engine.execution.cuda.page_stock import DeviceDriver
from engine.execution.cuda.plain import plain_ranges
from engine.execution.devices import Gpu, Gpus
from engine.memory.kv.ranges import RangeBacking
from engine.models.llama import LlamaConfig
from kernels.quant_types import RawTensor
from tests.support.fake_driver import PAGE, HostMemoryDriver

GPU = Gpu(0, "Fake", (9, 0), 1 << 30)
UPLOAD_SLACK = 3 << 20
"""Bytes that an upload leaves in the allocator."""


class FakeGpuRunner(CpuRunner):
    def warm_up(self, slots: int, rows: int) -> None:
        assert 1 <= slots * rows <= self.max_rows


@dataclass
class FakeGpu:
    """Implements OpenGpu and Allocator. `failure` is what the upload raises; `no_vmm` why there are no pages."""

    free: int = 1 << 30
    others: int = 5 << 20
    driver_: HostMemoryDriver = field(default_factory=HostMemoryDriver)
    failure: Exception | None = None
    no_vmm: str | None = None
    _reserved: int = 0
    _allocated: int = 0

    @property
    def allocator(self) -> FakeGpu:
        return self

    def free_and_total(self) -> tuple[int, int]:
        return self.free - self.others - self._reserved - len(self.driver_.handles) * PAGE, 1 << 30

    def reserved(self) -> int:
        return self._reserved

    def allocated(self) -> int:
        return self._allocated

    def empty(self) -> None:
        self._reserved = self._allocated

    def driver(self) -> DeviceDriver | str:
        return self.no_vmm or self.driver_

    def plain(self) -> RangeBacking:
        return plain_ranges(torch.device("cpu"))

    def runner(
        self, config: LlamaConfig, tensors: Mapping[str, RawTensor], *, max_rows: int, positions: int
    ) -> GpuRunner:
        if self.failure is not None:
            raise self.failure
        made = FakeGpuRunner(config, tensors, threads=1, max_rows=max_rows)
        self._allocated = made.weight_bytes()
        self._reserved = self._allocated + UPLOAD_SLACK
        return made


@dataclass
class FakeSystem:
    """Implements CudaSystem with one GPU."""

    gpu: FakeGpu = field(default_factory=FakeGpu)
    gpus: Gpus = field(default_factory=lambda: Gpus((GPU,)))

    def look(self) -> Gpus:
        return self.gpus

    def open(self, gpu: Gpu) -> FakeGpu:
        return self.gpu
