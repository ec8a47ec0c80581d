"""The GPUs of this box, opened through torch, which is imported where a GPU is used and no sooner."""

from __future__ import annotations

import os

from engine.execution.cuda.driver import supported
from engine.execution.cuda.loading import OpenGpu
from engine.execution.devices import Gpu, Gpus, UnusableDevice, look


def _let_segments_grow(index: int) -> None:
    """Have torch's allocator map pages, so that what loading frees goes back though weights lie beside it. Torch reads
    this before its first allocation. A GPU whose driver cannot map pages keeps plain segments, and a user's own
    settings stay."""
    given = any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if not given and supported(index) is None:
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


class TorchCuda:
    """The GPUs that the driver shows (implements CudaSystem)."""

    def look(self) -> Gpus:
        return look()

    def open(self, gpu: Gpu) -> OpenGpu:
        _let_segments_grow(gpu.index)
        import torch

        from engine.execution.cuda.gpu import TorchGpu

        try:
            if not torch.cuda.is_available():
                raise UnusableDevice(f"{gpu.device}: torch {torch.__version__} cannot use the CUDA driver")
            return TorchGpu(gpu)
        except RuntimeError as error:
            raise UnusableDevice(f"{gpu.device} ({gpu.name}) does not start: {error}") from error
