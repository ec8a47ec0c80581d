"""A device's physical pages: the driver calls behind them, and the stock that its ranges share."""

from __future__ import annotations

import threading
from typing import Protocol

from engine.execution.cuda.page_thread import PageThread

STOCK_PAGES = 64
"""Handles kept for reuse; more are returned to the driver."""


class OutOfDeviceMemoryError(MemoryError):
    """The driver has no memory for another page."""


class DeviceDriver(Protocol):
    """The driver calls that a range needs, from the engine's thread and the helper's. Addresses and sizes in bytes;
    handles and events are opaque integers. Each raises OSError where it fails."""

    page_bytes: int

    def reserve(self, length: int) -> int:
        """Reserve addresses."""
        ...

    def free_reserved(self, address: int, length: int) -> None: ...

    def create(self) -> int:
        """A physical page. Raises OutOfDeviceMemoryError."""
        ...

    def release(self, handle: int) -> None: ...

    def map(self, address: int, handle: int) -> None: ...

    def allow(self, address: int, length: int) -> None:
        """Make mapped pages readable and writable for the device."""
        ...

    def unmap(self, address: int) -> None: ...

    def zero(self, address: int, length: int) -> None:
        """Zero memory in the order of the compute stream; from another thread, before returning."""
        ...

    def mark(self) -> int:
        """An event behind everything enqueued so far."""
        ...

    def passed(self, event: int) -> bool:
        """Whether the event's work has ended; frees the event where it has."""
        ...

    def wait(self) -> None:
        """Wait until the device has ended all work."""
        ...


class PageStock:
    """Physical pages of one device, shared by its ranges, and the `thread` that maps and unmaps them.

    `live` counts every handle that exists, `spare` those that back nothing, `leaving` those given back and still
    mapped. Safe to call from the engine's thread and the helper's.
    """

    def __init__(self, driver: DeviceDriver) -> None:
        self.driver = driver
        self.page_bytes = driver.page_bytes
        self.thread = PageThread()
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._live = self._leaving = 0

    @property
    def live(self) -> int:
        return self._live

    @property
    def idle(self) -> int:
        """Handles that a commit can have though the device has no memory: spare ones, and those on their way out."""
        with self._lock:
            return len(self._spare) + self._leaving

    @property
    def spare(self) -> int:
        return len(self._spare)

    @property
    def leaving(self) -> int:
        return self._leaving

    def take(self) -> int:
        """A handle from the stock, or a new one; where the device has no memory, one of those on their way out, once
        they have left. Raises OutOfDeviceMemoryError."""
        try:
            return self._spare_or_new()
        except OutOfDeviceMemoryError:
            self.thread.wait_until_idle()
        return self._spare_or_new()

    def _spare_or_new(self) -> int:
        with self._lock:
            if self._spare:
                return self._spare.pop()
        handle = self.driver.create()
        with self._lock:
            self._live += 1
        return handle

    def put(self, handle: int) -> None:
        """Keep a handle for reuse, or return it to the driver where enough are kept."""
        self._put(handle, left=0)

    def leave(self, count: int) -> None:
        """So many mapped pages are on their way out; a negative count: they stay after all."""
        with self._lock:
            self._leaving += count

    def put_left(self, handle: int) -> None:
        """`put` for a page that was on its way out, in one step for whoever counts."""
        self._put(handle, left=1)

    def _put(self, handle: int, left: int) -> None:
        with self._lock:
            self._leaving -= left
            if len(self._spare) < STOCK_PAGES:
                self._spare.append(handle)
                return
        self._release([handle])

    def trim(self) -> int:
        """Return every spare handle to the driver; the bytes freed. A pressure ladder's step."""
        with self._lock:
            gone, self._spare = self._spare, []
        self._release(gone)
        return len(gone) * self.page_bytes

    def _release(self, handles: list[int]) -> None:
        for handle in handles:
            self.driver.release(handle)
            with self._lock:
                self._live -= 1
