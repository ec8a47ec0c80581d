"""Device address ranges whose pages are taken and given back one by one: the KV pool's backing on a CUDA device.

A range is reserved with `cuMemAddressReserve`; a page is a physical handle (`cuMemCreate`, 2 MiB on most cards) mapped
into it. Fresh pages are zeroed on the compute stream, before whatever reads them. A page given back stays mapped until
an event behind its last reader has passed, and its handle goes to a small stock first, since creating one costs more
than mapping it. A helper thread may map pages ahead, so that no round waits for a map call.

Works the same where memory is unified and where it is the card's own. `supported` says why not where the driver lacks
the calls; the pool is then plain allocations.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from engine.kv.ranges import KvRange, RangeBacking

BACKEND = "cuda-vmm"
STOCK_PAGES = 64
"""Handles kept for reuse; more are returned to the driver."""


class OutOfDeviceMemoryError(MemoryError):
    """The driver has no memory for another page."""


class DeviceDriver(Protocol):
    """The driver calls that a range needs. Addresses and sizes in bytes; handles and events are opaque integers."""

    page_bytes: int

    def reserve(self, length: int) -> int:
        """Reserve addresses. Raises OSError where they cannot be had."""
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


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Pages given back that a reader may still use: unmapped once `event` has passed."""

    event: int
    pages: tuple[int, ...]


class PageStock:
    """Physical pages of one device, shared by its ranges. `live` counts every handle that exists.

    Safe to call from the engine's thread and the helper's.
    """

    def __init__(self, driver: DeviceDriver) -> None:
        self.driver = driver
        self.page_bytes = driver.page_bytes
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._live = 0

    @property
    def live(self) -> int:
        return self._live

    @property
    def spare(self) -> int:
        return len(self._spare)

    def take(self) -> int:
        """A handle from the stock, or a new one. Raises OutOfDeviceMemoryError."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        handle = self.driver.create()
        with self._lock:
            self._live += 1
        return handle

    def put(self, handle: int) -> None:
        """Keep a handle for reuse, or return it to the driver where enough are kept."""
        with self._lock:
            if len(self._spare) < STOCK_PAGES:
                self._spare.append(handle)
                return
            self._live -= 1
        self.driver.release(handle)

    def trim(self) -> int:
        """Return every spare handle to the driver; the bytes freed. A pressure ladder's step."""
        with self._lock:
            gone, self._spare = self._spare, []
            self._live -= len(gone)
        for handle in gone:
            self.driver.release(handle)
        return len(gone) * self.page_bytes


class CudaRange:
    """One reserved range of `length` bytes from `address`, rounded up to whole pages.

    The engine's thread calls everything but what `commit_ahead` hands to the helper. Offsets and lengths are multiples
    of the page. Raises OSError where the addresses cannot be had.
    """

    def __init__(self, length: int, stock: PageStock) -> None:
        self._stock = stock
        self._driver = stock.driver
        self._page = stock.page_bytes
        self.length = -(-length // self._page) * self._page
        self.address = self._driver.reserve(self.length)
        self._handles: dict[int, int] = {}
        self._leaving: deque[_Leaving] = deque()
        self._returning: set[int] = set()
        self._lock = threading.Lock()
        self._ahead: dict[int, Future[None]] = {}
        self._open = True

    @property
    def committed_bytes(self) -> int:
        """Bytes behind the range, without the pages on their way out."""
        return (len(self._handles) - len(self._returning)) * self._page

    @property
    def leaving_bytes(self) -> int:
        """Bytes given back whose readers have not ended."""
        return len(self._returning) * self._page

    def commit(self, offset: int, length: int) -> None:
        """Back the span with zeroed pages; pages that are backed already keep their contents.

        A page that the helper is mapping is waited for; one on its way out is kept and zeroed. Raises MemoryError where
        the device has no memory; pages of the span backed before the failure stay, and `give_back` undoes them.
        """
        pages = self._span(offset, length)
        for page in pages:
            future = self._ahead.pop(page, None)
            if future is not None:
                future.result()
        with self._lock:
            stay = self._returning.intersection(pages)
            self._returning -= stay
            self._leaving = deque(
                _Leaving(entry.event, tuple(p for p in entry.pages if p not in stay)) for entry in self._leaving
            )
        for first, count in _runs(sorted(stay)):
            self._driver.zero(self.address + first * self._page, count * self._page)
        self._back([page for page in pages if page not in self._handles])

    def commit_ahead(self, spans: Sequence[tuple[int, int]], helper: ThreadPoolExecutor) -> None:
        """Let `helper`, one thread, back pages of the spans (offset, length), ascending, that nothing backs yet. A
        failure surfaces in the `commit` that needs one of them, or never."""
        wanted = [page for offset, length in spans for page in self._span(offset, length)]
        pages = [page for page in wanted if page not in self._handles and page not in self._ahead]
        if pages:
            self._ahead.update(dict.fromkeys(pages, helper.submit(self._back, pages)))

    def give_back(self, offset: int, length: int) -> None:
        """Return the span's pages once everything enqueued so far has ended; it stays reserved."""
        pages = self._span(offset, length)
        self.collect()
        for page in pages:
            future = self._ahead.pop(page, None)
            if future is not None:
                future.exception()  # never cancelled: it backs pages of other spans, too
        with self._lock:
            going = tuple(p for p in pages if p in self._handles and p not in self._returning)
            self._returning.update(going)
        if going:
            self._leaving.append(_Leaving(self._driver.mark(), going))

    def collect(self) -> int:
        """Unmap pages whose readers have ended; the bytes freed. Give-backs begin with it; no round may call it."""
        freed = 0
        while self._leaving and self._driver.passed(self._leaving[0].event):
            freed += self._unmap(self._leaving.popleft().pages)
        return freed

    def close(self) -> None:
        """Return everything. Nothing may point into the range then. Calling it again does nothing."""
        if not self._open:
            return
        self._open = False
        for future in set(self._ahead.values()):
            if not future.cancel():
                future.exception()
        self._ahead.clear()
        self._driver.wait()
        for entry in self._leaving:
            self._driver.passed(entry.event)
        self._leaving.clear()
        self._unmap(tuple(self._handles))
        self._driver.free_reserved(self.address, self.length)

    def check_integrity(self) -> None:
        """Hold the page map against itself. Raises RuntimeError naming what differs."""
        listed = [page for entry in self._leaving for page in entry.pages]
        if len(listed) != len(set(listed)) or set(listed) != self._returning:
            raise RuntimeError(f"pages on their way out: {sorted(listed)} listed, {sorted(self._returning)} marked")
        stray = self._returning - self._handles.keys()
        if stray:
            raise RuntimeError(f"pages {sorted(stray)} are on their way out but not mapped")
        outside = [page for page in self._handles if not 0 <= page * self._page < self.length]
        if outside:
            raise RuntimeError(f"pages {outside} lie outside the range of {self.length} bytes")

    def _span(self, offset: int, length: int) -> range:
        if offset % self._page or length % self._page or offset < 0 or offset + length > self.length:
            raise ValueError(
                f"span of {length} bytes at {offset} in a range of {self.length}: "
                f"not whole pages of {self._page} inside it"
            )
        return range(offset // self._page, (offset + length) // self._page)

    def _back(self, pages: list[int]) -> None:
        mapped: list[int] = []
        try:
            for page in pages:
                handle = self._stock.take()
                try:
                    self._driver.map(self.address + page * self._page, handle)
                except BaseException:
                    self._stock.put(handle)
                    raise
                with self._lock:
                    self._handles[page] = handle
                mapped.append(page)
        finally:
            for first, count in _runs(mapped):
                at = self.address + first * self._page
                self._driver.allow(at, count * self._page)
                self._driver.zero(at, count * self._page)

    def _unmap(self, pages: tuple[int, ...]) -> int:
        for page in pages:
            self._driver.unmap(self.address + page * self._page)
            with self._lock:
                handle = self._handles.pop(page)
                self._returning.discard(page)
            self._stock.put(handle)
        return len(pages) * self._page


def _runs(pages: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive numbers in an ascending list, as (first, count)."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs


def device_ranges(stock: PageStock) -> RangeBacking:
    """Pages of one device as a backing of the KV pool."""

    def held(ranges: Sequence[KvRange]) -> list[int]:
        return [r.committed_bytes if isinstance(r, CudaRange) else 0 for r in ranges]

    page = stock.page_bytes
    return RangeBacking(BACKEND, page, page, lambda length: CudaRange(length, stock), held, ahead=True)
