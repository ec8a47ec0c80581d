"""The choice of a device, and the words of each refusal."""

from __future__ import annotations

import pytest
from cuda.bindings.driver import CUdevice_attribute

from engine.execution import devices
from engine.execution.devices import Choice, Gpu, Gpus, UnusableDevice, bus_address, choose, look

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
    """The driver calls that `look` and `bus_address` make, as `cuda.bindings.driver` has them."""

    CUdevice_attribute = CUdevice_attribute

    def __init__(self, status: int, count: int, failing: str = "") -> None:
        self._status = status
        self._count = count
        self._failing = failing

    def _answer(self, name: str, value: object) -> tuple[int, object]:
        return (3, None) if name == self._failing else (0, value)

    def cuInit(self, _flags: int) -> tuple[int]:  # noqa: N802
        return (self._status,)

    def cuDeviceGetCount(self) -> tuple[int, object]:  # noqa: N802
        return self._answer("cuDeviceGetCount", self._count)

    def cuDeviceGet(self, index: int) -> tuple[int, object]:  # noqa: N802
        return self._answer("cuDeviceGet", index)

    def cuDeviceGetName(self, size: int, handle: int) -> tuple[int, object]:  # noqa: N802
        return self._answer("cuDeviceGetName", f"GPU {handle}".encode().ljust(size, b"\0"))

    def cuDeviceGetAttribute(self, attribute: CUdevice_attribute, _handle: int) -> tuple[int, object]:  # noqa: N802
        major = attribute is CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        return self._answer("cuDeviceGetAttribute", 8 if major else 9)

    def cuDeviceTotalMem(self, _handle: int) -> tuple[int, object]:  # noqa: N802
        return self._answer("cuDeviceTotalMem", 24 << 30)

    def cuDeviceGetPCIBusId(self, size: int, handle: int) -> tuple[int, object]:  # noqa: N802
        return self._answer("cuDeviceGetPCIBusId", f"0000:0{handle}:00.0".encode().ljust(size, b"\0"))


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
    monkeypatch.setattr(devices, "_driver", lambda: FakeCuda(status, count))
    monkeypatch.setattr(devices, "version", lambda _name: torch)
    assert look() == gpus


def test_a_bus_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_driver", lambda: FakeCuda(0, 3))
    assert bus_address(2) == "0000:02:00.0"


@pytest.mark.parametrize(
    "driver", [FakeCuda(803, 1), FakeCuda(0, 1, "cuDeviceGet"), FakeCuda(0, 1, "cuDeviceGetPCIBusId")]
)
def test_no_bus_address(monkeypatch: pytest.MonkeyPatch, driver: FakeCuda) -> None:
    monkeypatch.setattr(devices, "_driver", lambda: driver)
    assert bus_address(0) is None


def test_a_box_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def cuInit(self, _flags: int) -> None:  # noqa: N802
            raise RuntimeError("libcuda.so.1 cannot be found")

    monkeypatch.setattr(devices, "_driver", Missing)
    assert look() == NO_DRIVER
    assert bus_address(0) is None
