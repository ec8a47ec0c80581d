"""A device driver in dictionaries, and one whose device memory is the host's."""

from __future__ import annotations

import ctypes
import mmap
import threading

from engine.kv.cuda_vmm import OutOfDeviceMemoryError
from tests.support.patience import LONG_S

PAGE = 4096


class FakeDriver:
    """Pages, maps and events in dictionaries; a wrong call is an assertion."""

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
        self._next = 1

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
        if not self.left:
            raise OutOfDeviceMemoryError("none left")
        self.left -= 1
        self._next += 1
        self.handles.add(self._next)
        return self._next

    def release(self, handle: int) -> None:
        assert handle not in self.maps.values()
        self.handles.remove(handle)
        self.left += 1

    def map(self, address: int, handle: int) -> None:
        assert address not in self.maps
        assert handle in self.handles
        assert handle not in self.maps.values()
        self.maps[address] = handle

    def allow(self, address: int, length: int) -> None:
        self.allowed |= set(range(address, address + length, PAGE))

    def unmap(self, address: int) -> None:
        del self.maps[address]
        self.allowed.remove(address)

    def zero(self, address: int, length: int) -> None:
        for at in range(address, address + length, PAGE):
            assert at in self.maps
            assert at in self.allowed
            self.zeroed.append(at)

    def mark(self) -> int:
        self.events += 1
        return self.events

    def passed(self, event: int) -> bool:
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
