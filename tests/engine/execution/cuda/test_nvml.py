"""A GPU's memory through NVML: what is asked, and what every failure comes to."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from engine.execution import devices
from engine.execution.cuda.nvml import GpuState, read_gpu


class FakeNvml:
    """What `read_gpu` calls of pynvml; the call named `failing` raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: str = "") -> None:
        self.open = 0
        answers = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shut_down,
            "nvmlDeviceGetHandleByPciBusId": lambda address: int(address.split(":")[1]),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1000 * handle, free=10 * handle),
            "nvmlSystemGetDriverVersion": lambda: "570.86",
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self._fail if name == failing else answer)

    def _init(self) -> None:
        self.open += 1

    def _shut_down(self) -> None:
        self.open -= 1

    def _fail(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


@pytest.fixture(autouse=True)
def bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "bus_address", lambda index: f"0000:0{index}:00.0" if index < 8 else None)


def test_a_gpu_is_found_by_its_bus_address(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch)
    assert read_gpu(2) == GpuState(total=2000, free=20, driver="570.86")


@pytest.mark.parametrize(
    "failing", ["nvmlInit", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetMemoryInfo", "nvmlSystemGetDriverVersion"]
)
def test_whatever_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    nvml = FakeNvml(monkeypatch, failing)
    assert read_gpu(1) is None
    assert nvml.open == 0


def test_a_gpu_that_the_driver_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch)
    assert read_gpu(9) is None
