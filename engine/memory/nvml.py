"""Reads a GPU's memory and its driver's version through NVML, which needs neither torch nor a context on the GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_BUS_ID_LENGTH = 32
_VERSION_LENGTH = 80


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class GpuState:
    """What NVML says of one GPU: bytes in all and free now, and the driver's version."""

    total: int
    free: int
    driver: str


def read_gpu(index: int) -> GpuState | None:
    """The state of the GPU that the CUDA driver numbers `index`; None where NVML does not say (no library, or memory
    that GPU and host share)."""
    try:
        cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    # The two libraries number GPUs differently; the bus address is the same in both.
    bus = ctypes.create_string_buffer(_BUS_ID_LENGTH)
    device, handle, memory = ctypes.c_int(0), ctypes.c_void_p(), _Memory()
    version = ctypes.create_string_buffer(_VERSION_LENGTH)
    if (
        cuda.cuInit(0) != 0
        or cuda.cuDeviceGet(ctypes.byref(device), index) != 0
        or cuda.cuDeviceGetPCIBusId(bus, _BUS_ID_LENGTH, device) != 0
        or nvml.nvmlInit_v2() != 0
    ):
        return None
    try:
        if (
            nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) != 0
            or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0
            or nvml.nvmlSystemGetDriverVersion(version, _VERSION_LENGTH) != 0
        ):
            return None
    finally:
        nvml.nvmlShutdown()
    return GpuState(memory.total, memory.free, version.value.decode(errors="replace"))
