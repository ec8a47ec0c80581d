"""Which device a model runs on: what was asked for, which GPUs the driver shows, and why one cannot be used.

The driver is asked directly, since importing torch takes seconds: `tandem doctor` uses this too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

LEAST_CAPABILITY = (8, 0)
"""Gpus from Ampere on: bf16 products and asynchronous copies."""

_NO_DEVICE = 100
_NAME_LENGTH, _BUS_ADDRESS_LENGTH = 128, 32


class UnusableDevice(ValueError):
    """The device is not one, or cannot run the model. The message says why and what would do."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device as the driver numbers it; `total` in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    total: int

    @property
    def device(self) -> str:
        return f"cuda:{self.index}"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of this box; `missing` says why there are none, where that is so."""

    found: tuple[Gpu, ...]
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the model is to run: on `gpu`, or on the CPU where it is None; `reason` is why "auto" took no GPU."""

    gpu: Gpu | None
    reason: str | None


def choose(wanted: str, gpus: Gpus) -> Choice:
    """The device for "auto", "cpu" or "cuda[:i]". Raises UnusableDevice for a GPU that was named and cannot be used.

    "auto" takes the first GPU that can be used.
    """
    if wanted == "cpu":
        return Choice(None, None)
    if wanted == "auto":
        usable = [gpu for gpu in gpus.found if too_old(gpu) is None]
        return Choice(usable[0], None) if usable else Choice(None, _why_none(gpus))
    named = re.fullmatch(r"cuda(?::([0-9]+))?", wanted)
    if named is None:
        raise UnusableDevice(f"device is {wanted!r}, allowed are auto, cpu and cuda[:i]")
    if not gpus.found:
        raise UnusableDevice(f"device is {wanted!r}, but {_why_none(gpus)}; use auto or cpu")
    index = int(named[1] or 0)
    if index >= len(gpus.found):
        shown = ", ".join(f"{gpu.device} ({gpu.name})" for gpu in gpus.found)
        raise UnusableDevice(f"device is {wanted!r}, but the driver shows only {shown}")
    old = too_old(gpus.found[index])
    if old is not None:
        raise UnusableDevice(f"device is {wanted!r}, but {old}; use another GPU, auto or cpu")
    return Choice(gpus.found[index], None)


def too_old(gpu: Gpu) -> str | None:
    """Why the GPU's generation cannot run the kernels; None where it can."""
    if gpu.capability >= LEAST_CAPABILITY:
        return None
    have, need = (f"{major}.{minor}" for major, minor in (gpu.capability, LEAST_CAPABILITY))
    return f"{gpu.device} ({gpu.name}) has compute capability {have}, {need} is needed"


def without_gpu(backend: str, reason: str) -> str:
    """The CPU's backend as `/health` names it, and why no GPU runs the model."""
    return f"{backend}; no GPU: {reason}"


def _why_none(gpus: Gpus) -> str:
    if gpus.missing is not None:
        return gpus.missing
    return "; ".join(filter(None, map(too_old, gpus.found))) or "the driver shows no GPU"


def look() -> Gpus:
    """Ask the driver for its GPUs, as far as this installation could use them."""
    try:
        driver = _driver()
        (status,) = driver.cuInit(0)
    except (ImportError, RuntimeError):
        # The bindings import everywhere and miss the library only when they are used.
        return Gpus((), "no CUDA driver is installed (libcuda.so.1)")
    if int(status) not in (0, _NO_DEVICE):
        return Gpus((), f"the CUDA driver does not start (cuInit: error {int(status)})")
    error, count = driver.cuDeviceGetCount() if int(status) == 0 else (status, 0)
    if int(error) != 0 or count == 0:
        return Gpus((), "the CUDA driver shows no GPU")
    lacking = _torch_lacks_cuda()
    return Gpus((), lacking) if lacking else Gpus(tuple(_gpu(driver, i) for i in range(count)))


def bus_address(index: int) -> str | None:
    """The PCI bus address of the GPU that the driver numbers `index`; None where the driver does not say."""
    try:
        driver = _driver()
        if int(driver.cuInit(0)[0]) != 0:
            return None
        error, handle = driver.cuDeviceGet(index)
        if int(error) != 0:
            return None
        error, address = driver.cuDeviceGetPCIBusId(_BUS_ADDRESS_LENGTH, handle)
    except (ImportError, RuntimeError):
        return None
    return _text(address) if int(error) == 0 else None


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _torch_lacks_cuda() -> str | None:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return "torch is not installed"
    return f"the installed torch ({installed}) is built without CUDA" if installed.endswith("+cpu") else None


def _gpu(driver: Any, index: int) -> Gpu:
    attribute = driver.CUdevice_attribute
    _, handle = driver.cuDeviceGet(index)
    _, name = driver.cuDeviceGetName(_NAME_LENGTH, handle)
    _, major = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
    _, minor = driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)
    _, total = driver.cuDeviceTotalMem(handle)
    return Gpu(index, _text(name), (major, minor), int(total))


def _text(value: bytes) -> str:
    """A C string in a buffer of fixed length."""
    return value.partition(b"\0")[0].decode(errors="replace")
