"""Reads a GPU's memory and its driver's version through NVML, which needs neither torch nor a context on the GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuState:
    """What NVML says of one GPU: bytes in all and free now, and the driver's version."""

    total: int
    free: int
    driver: str


def read_gpu(index: int) -> GpuState | None:
    """The state of the GPU that the CUDA driver numbers `index`; None where NVML does not say (no library, or memory
    that GPU and host share)."""
    import pynvml

    from engine.execution.devices import bus_address

    # The two libraries number GPUs differently; the bus address is the same in both.
    address = bus_address(index)
    if address is None:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByPciBusId(address))
        return GpuState(int(memory.total), int(memory.free), str(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
