"""The CUDA driver's virtual memory calls behind `engine.execution.cuda.vmm.DeviceDriver`, through `cuda.bindings`."""

from __future__ import annotations

import threading
from typing import Any

from engine.execution.cuda.page_stock import OutOfDeviceMemoryError


def supported(device: int) -> str | None:
    """Why this device cannot have a pool of pages, or None where it can."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return "cuda-python is not installed"
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    try:
        _check(driver.cuInit(0))
        handle = _check(driver.cuDeviceGet(device))
        if not _check(driver.cuDeviceGetAttribute(attribute, handle)):
            return f"the driver has no virtual memory management for device {device}"
    except OSError as error:
        return str(error)
    return None


class CudaDriver:
    """Driver calls for one device (implements `DeviceDriver`). `stream` is the compute stream's handle.

    The device's primary context must be current in the engine's thread; every call that another thread may make makes
    it current there.
    Raises OSError for a call that fails, OutOfDeviceMemoryError for a page that cannot be had.
    """

    def __init__(self, device: int, stream: int) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._owner = threading.get_ident()
        self._context = _check(driver.cuCtxGetCurrent())
        self._stream = driver.CUstream(stream)
        self._side = _check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = device
        self._access = driver.CUmemAccessDesc()
        self._access.location = self._properties.location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page_bytes = int(_check(driver.cuMemGetAllocationGranularity(self._properties, minimum)))
        self._events: dict[int, Any] = {}

    def reserve(self, length: int) -> int:
        return int(_check(self._driver.cuMemAddressReserve(length, 0, 0, 0)))

    def free_reserved(self, address: int, length: int) -> None:
        _check(self._driver.cuMemAddressFree(address, length))

    def create(self) -> int:
        self._enter()
        error, handle = self._driver.cuMemCreate(self.page_bytes, self._properties, 0)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfDeviceMemoryError(f"the device has no memory for another {self.page_bytes} bytes of KV pages")
        return int(_check((error, handle)))

    def release(self, handle: int) -> None:
        self._enter()
        _check(self._driver.cuMemRelease(handle))

    def map(self, address: int, handle: int) -> None:
        self._enter()
        _check(self._driver.cuMemMap(address, self.page_bytes, 0, handle, 0))

    def allow(self, address: int, length: int) -> None:
        self._enter()
        _check(self._driver.cuMemSetAccess(address, length, [self._access], 1))

    def unmap(self, address: int) -> None:
        self._enter()
        _check(self._driver.cuMemUnmap(address, self.page_bytes))

    def zero(self, address: int, length: int) -> None:
        if threading.get_ident() == self._owner:
            _check(self._driver.cuMemsetD8Async(address, 0, length, self._stream))
        else:
            _check(self._driver.cuMemsetD8Async(address, 0, length, self._side))
            _check(self._driver.cuStreamSynchronize(self._side))

    def mark(self) -> int:
        event = _check(self._driver.cuEventCreate(self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        _check(self._driver.cuEventRecord(event, self._stream))
        self._events[int(event)] = event
        return int(event)

    def passed(self, event: int) -> bool:
        self._enter()
        (error,) = self._driver.cuEventQuery(self._events[event])
        if error == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _check((error,))
        _check(self._driver.cuEventDestroy(self._events.pop(event)))
        return True

    def wait(self) -> None:
        _check(self._driver.cuCtxSynchronize())

    def _enter(self) -> None:
        if threading.get_ident() != self._owner:
            _check(self._driver.cuCtxSetCurrent(self._context))


def _check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises OSError naming the driver's error."""
    if int(result[0]) != 0:
        raise OSError(int(result[0]), f"CUDA driver: {result[0].name}")
    return result[1] if len(result) > 1 else None
