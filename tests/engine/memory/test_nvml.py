"""A GPU's memory through NVML: what is asked, and what every failure comes to."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engine.memory.nvml import GpuState, read_gpu


class FakeLibrary:
    """Both libraries at once. `_obj` is what a `byref` points to; the call named `failing` returns an error."""

    def __init__(self, failing: str = "") -> None:
        self._failing = failing
        self.shut_down = 0

    def __getattr__(self, name: str) -> Any:
        answers = {
            "cuDeviceGet": lambda out, index: self._set(out, index),
            "cuDeviceGetPCIBusId": lambda out, _size, device: self._text(out, f"0000:0{device.value}:00.0"),
            "nvmlDeviceGetHandleByPciBusId_v2": lambda bus, out: self._set(out, int(bus.value.split(b":")[1])),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlSystemGetDriverVersion": lambda out, _size: self._text(out, "570.86"),
            "nvmlShutdown": self._shut,
        }
        return (lambda *_: 3) if name == self._failing else answers.get(name, lambda *_: 0)

    def _set(self, out: Any, value: int) -> int:
        out._obj.value = value
        return 0

    def _text(self, out: Any, text: str) -> int:
        out.value = text.encode()
        return 0

    def _memory(self, handle: Any, out: Any) -> int:
        out._obj.total, out._obj.free = 1000 * handle.value, 10 * handle.value
        return 0

    def _shut(self) -> int:
        self.shut_down += 1
        return 0


def test_a_gpu_is_found_by_its_bus_address(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    assert read_gpu(2) == GpuState(total=2000, free=20, driver="570.86")


@pytest.mark.parametrize(
    "failing",
    [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetPCIBusId",
        "nvmlInit_v2",
        "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlSystemGetDriverVersion",
    ],
)
def test_whatever_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    library = FakeLibrary(failing)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    assert read_gpu(1) is None
    begun = failing.startswith(("nvmlDevice", "nvmlSystem"))
    assert library.shut_down == begun


def test_no_library_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert read_gpu(0) is None
