"""A device driver in dictionaries, and one whose device memory is the host's."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable

from engine.execution.cuda.page_stock import OutOfDeviceMemoryError
from tests.support.patience import LONG_S

PAGE = 4096


class FakeDriver:
    """Pages, maps and events in dictionaries; a wrong call is an assertion.

    `gate` holds `create` up, `unmap_gate` `unmap`; `failing` names calls that the driver refuses; `calls` has each map
    call with its address and thread.
    """

    page_bytes = PAGE

    def __init__(self, pages: int = 1000) -> None:
        self.left = pages
        self.handles: set[int] = set()
        self.maps: dict[int, int] = {}
        self.allowed: set[int] = set()
        self.zeroed: list[int] = []
        self.reserved: dict[int, int] = {}
        self.done = 0
        self.events = 0
        self.gate: threading.Event | None = None
        self.unmap_gate: threading.Event | None = None
        self.failing: set[str] = set()
        self.calls: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._next = 1

    def _called(self, name: str, at: int) -> None:
        with self._change:
            self.calls.append((name, at, threading.get_ident()))
            self._change.notify_all()
        self._may_fail(name)

    def _may_fail(self, name: str) -> None:
        if name in self.failing:
            raise OSError(700, f"scripted failure of {name}")

    def reserve(self, length: int) -> int:
        address = (1 << 40) + sum(self.reserved.values()) * 2
        self.reserved[address] = length
        return address

    def free_reserved(self, address: int, length: int) -> None:
        assert self.reserved.pop(address) == length
        assert not any(address <= at < address + length for at in self.maps)

    def create(self) -> int:
        if self.gate is not None:
            self.gate.wait(LONG_S)
        with self._lock:
            if not self.left:
                raise OutOfDeviceMemoryError("none left")
            self.left -= 1
            self._next += 1
            self.handles.add(self._next)
            return self._next

    def release(self, handle: int) -> None:
        self._may_fail("release")
        with self._lock:
            assert handle not in self.maps.values()
            self.handles.remove(handle)
            self.left += 1

    def map(self, address: int, handle: int) -> None:
        self._called("map", address)
        assert address not in self.maps
        with self._lock:
            assert handle in self.handles
            assert handle not in self.maps.values()
            self.maps[address] = handle

    def allow(self, address: int, length: int) -> None:
        self._may_fail("allow")
        self.allowed |= set(range(address, address + length, PAGE))

    def unmap(self, address: int) -> None:
        self._called("unmap", address)
        if self.unmap_gate is not None:
            self.unmap_gate.wait(LONG_S)
        with self._lock:
            del self.maps[address]
            self.allowed.discard(address)
            self._change.notify_all()

    def wait_for(self, reached: Callable[[], bool]) -> bool:
        """Wait until a call of another thread, such as an `unmap`, makes `reached` true; whether it did."""
        with self._change:
            return self._change.wait_for(reached, timeout=LONG_S)

    def zero(self, address: int, length: int) -> None:
        for at in range(address, address + length, PAGE):
            assert at in self.maps
            assert at in self.allowed
            self.zeroed.append(at)

    def mark(self) -> int:
        self.events += 1
        return self.events

    def passed(self, event: int) -> bool:
        self._may_fail("passed")
        return event <= self.done

    def wait(self) -> None:
        self.done = self.events


class HostMemoryDriver(FakeDriver):
    """Its ranges lie in the host's memory, so that a CPU can compute in them; work ends at once."""

    def __init__(self, pages: int = 1000) -> None:
        super().__init__(pages)
        self._kept: dict[int, mmap.mmap] = {}

    def reserve(self, length: int) -> int:
        memory = mmap.mmap(-1, length)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._kept[address] = memory
        self.reserved[address] = length
        return address

    def zero(self, address: int, length: int) -> None:
        super().zero(address, length)
        ctypes.memset(address, 0, length)

    def passed(self, event: int) -> bool:
        return True
