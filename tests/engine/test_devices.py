"""The choice of a device, and the words of each refusal."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engine import devices
from engine.devices import Choice, Gpu, Gpus, UnusableDevice, choose, look

NEW = Gpu(0, "NVIDIA A", (9, 0), 8 << 30)
SECOND = Gpu(1, "NVIDIA B", (8, 0), 8 << 30)
OLD = Gpu(0, "NVIDIA O", (7, 5), 8 << 30)
NO_DRIVER = Gpus((), "no CUDA driver is installed (libcuda.so.1)")


@pytest.mark.parametrize(
    ("wanted", "gpus", "choice"),
    [
        ("cpu", Gpus((NEW,)), Choice(None, None)),
        ("auto", Gpus((NEW, SECOND)), Choice(NEW, None)),
        ("auto", Gpus((OLD, SECOND)), Choice(SECOND, None)),
        ("auto", NO_DRIVER, Choice(None, "no CUDA driver is installed (libcuda.so.1)")),
        ("auto", Gpus((OLD,)), Choice(None, "cuda:0 (NVIDIA O) has compute capability 7.5, 8.0 is needed")),
        ("cuda", Gpus((NEW, SECOND)), Choice(NEW, None)),
        ("cuda:1", Gpus((NEW, SECOND)), Choice(SECOND, None)),
    ],
)
def test_what_is_chosen(wanted: str, gpus: Gpus, choice: Choice) -> None:
    assert choose(wanted, gpus) == choice


@pytest.mark.parametrize(
    ("wanted", "gpus", "words"),
    [
        ("tpu", Gpus((NEW,)), "device is 'tpu', allowed are auto, cpu and cuda[:i]"),
        ("cuda", NO_DRIVER, "device is 'cuda', but no CUDA driver is installed (libcuda.so.1); use auto or cpu"),
        ("cuda:0", Gpus(()), "device is 'cuda:0', but the driver shows no GPU; use auto or cpu"),
        ("cuda:7", Gpus((NEW,)), "device is 'cuda:7', but the driver shows only cuda:0 (NVIDIA A)"),
        (
            "cuda",
            Gpus((OLD,)),
            "device is 'cuda', but cuda:0 (NVIDIA O) has compute capability 7.5, 8.0 is needed; use another GPU, "
            "auto or cpu",
        ),
    ],
)
def test_what_is_refused(wanted: str, gpus: Gpus, words: str) -> None:
    with pytest.raises(UnusableDevice) as refused:
        choose(wanted, gpus)
    assert str(refused.value) == words


class FakeCuda:
    """The driver calls that `look` makes. `_obj` is what a `byref` points to."""

    def __init__(self, status: int, count: int) -> None:
        self._status = status
        self._count = count

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self._status

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self._count
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, out: Any, _size: int, handle: Any) -> int:  # noqa: N802
        out.value = f"GPU {handle.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _handle: Any) -> int:  # noqa: N802
        out._obj.value = {75: 8, 76: 9}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, _handle: Any) -> int:  # noqa: N802
        out._obj.value = 24 << 30
        return 0


@pytest.mark.parametrize(
    ("status", "count", "torch", "gpus"),
    [
        (0, 2, "2.13.0", Gpus(tuple(Gpu(i, f"GPU {i}", (8, 9), 24 << 30) for i in range(2)))),
        (0, 0, "2.13.0", Gpus((), "the CUDA driver shows no GPU")),
        (100, 0, "2.13.0", Gpus((), "the CUDA driver shows no GPU")),
        (803, 0, "2.13.0", Gpus((), "the CUDA driver does not start (cuInit: error 803)")),
        (0, 1, "2.13.0+cpu", Gpus((), "the installed torch (2.13.0+cpu) is built without CUDA")),
    ],
)
def test_what_the_driver_shows(
    monkeypatch: pytest.MonkeyPatch, status: int, count: int, torch: str, gpus: Gpus
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeCuda(status, count))
    monkeypatch.setattr(devices, "version", lambda _name: torch)
    assert look() == gpus


def test_a_box_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert look() == NO_DRIVER
