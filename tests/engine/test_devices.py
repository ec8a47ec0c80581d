"""The choice of a device, and the words of each refusal."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from engine import devices
from engine.devices import Card, Cards, Choice, UnusableDevice, choose, look

NEW = Card(0, "NVIDIA A", (9, 0), 8 << 30)
SECOND = Card(1, "NVIDIA B", (8, 0), 8 << 30)
OLD = Card(0, "NVIDIA O", (7, 5), 8 << 30)
NO_DRIVER = Cards((), "no CUDA driver is installed (libcuda.so.1)")


@pytest.mark.parametrize(
    ("wanted", "cards", "choice"),
    [
        ("cpu", Cards((NEW,)), Choice(None, None)),
        ("auto", Cards((NEW, SECOND)), Choice(NEW, None)),
        ("auto", Cards((OLD, SECOND)), Choice(SECOND, None)),
        ("auto", NO_DRIVER, Choice(None, "no CUDA driver is installed (libcuda.so.1)")),
        ("auto", Cards((OLD,)), Choice(None, "cuda:0 (NVIDIA O) has compute capability 7.5, 8.0 is needed")),
        ("cuda", Cards((NEW, SECOND)), Choice(NEW, None)),
        ("cuda:1", Cards((NEW, SECOND)), Choice(SECOND, None)),
    ],
)
def test_what_is_chosen(wanted: str, cards: Cards, choice: Choice) -> None:
    assert choose(wanted, cards) == choice


@pytest.mark.parametrize(
    ("wanted", "cards", "words"),
    [
        ("tpu", Cards((NEW,)), "device is 'tpu', allowed are auto, cpu and cuda[:i]"),
        ("cuda", NO_DRIVER, "device is 'cuda', but no CUDA driver is installed (libcuda.so.1); use auto or cpu"),
        ("cuda:0", Cards(()), "device is 'cuda:0', but the driver shows no card; use auto or cpu"),
        ("cuda:7", Cards((NEW,)), "device is 'cuda:7', but the driver shows only cuda:0 (NVIDIA A)"),
        (
            "cuda",
            Cards((OLD,)),
            "device is 'cuda', but cuda:0 (NVIDIA O) has compute capability 7.5, 8.0 is needed; use another card, "
            "auto or cpu",
        ),
    ],
)
def test_what_is_refused(wanted: str, cards: Cards, words: str) -> None:
    with pytest.raises(UnusableDevice) as refused:
        choose(wanted, cards)
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
        out.value = f"card {handle.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _handle: Any) -> int:  # noqa: N802
        out._obj.value = {75: 8, 76: 9}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, _handle: Any) -> int:  # noqa: N802
        out._obj.value = 24 << 30
        return 0


@pytest.mark.parametrize(
    ("status", "count", "torch", "cards"),
    [
        (0, 2, "2.13.0", Cards(tuple(Card(i, f"card {i}", (8, 9), 24 << 30) for i in range(2)))),
        (0, 0, "2.13.0", Cards((), "the CUDA driver shows no card")),
        (100, 0, "2.13.0", Cards((), "the CUDA driver shows no card")),
        (803, 0, "2.13.0", Cards((), "the CUDA driver does not start (cuInit: error 803)")),
        (0, 1, "2.13.0+cpu", Cards((), "the installed torch (2.13.0+cpu) is built without CUDA")),
    ],
)
def test_what_the_driver_shows(
    monkeypatch: pytest.MonkeyPatch, status: int, count: int, torch: str, cards: Cards
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeCuda(status, count))
    monkeypatch.setattr(devices, "version", lambda _name: torch)
    assert look() == cards


def test_a_box_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert look() == NO_DRIVER
