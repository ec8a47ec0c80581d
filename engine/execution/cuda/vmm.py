"""Device address ranges whose pages are taken and given back one by one: the KV pool's backing on a CUDA device.

A range is reserved with `cuMemAddressReserve`; a page is a physical handle (`cuMemCreate`, 2 MiB on most GPUs) mapped
into it. Fresh pages are zeroed on the compute stream, before whatever reads them. A page given back stays mapped until
an event behind its last reader has passed, and its handle goes to a small stock first, since creating one costs more
than mapping it. A helper thread (`page_thread.py`) unmaps them, and may map pages ahead, so that no round waits for
either; where the device has no page left, whoever needs one waits for those on their way out.

Works the same where memory is unified and where it is the GPU's own. `cuda_driver.supported` says why not where the
driver lacks the calls; the pool is then plain allocations.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from engine.execution.cuda.page_stock import PageStock
from engine.execution.cuda.page_thread import Progress
from engine.memory.kv.ranges import KvRange, RangeBacking

BACKEND = "cuda-vmm"


@dataclass(eq=False, slots=True)
class _Leaving:
    """Pages given back that a reader may still use: unmapped once `event` has passed, which `passed` remembers."""

    event: int
    pages: deque[int]
    passed: bool = False


class CudaRange:
    """One reserved range of `length` bytes from `address`, rounded up to whole pages.

    Only the engine's thread calls it; the stock's thread does what `commit_ahead` and `give_back` leave to it. Offsets
    and lengths are multiples of the page. Raises OSError where the addresses cannot be had.
    """

    def __init__(self, length: int, stock: PageStock) -> None:
        self._stock = stock
        self._driver = stock.driver
        self._page = stock.page_bytes
        self.length = -(-length // self._page) * self._page
        self.address = self._driver.reserve(self.length)
        self._moved = threading.Condition()
        """Guards what follows, and tells of a page that has left."""
        self._handles: dict[int, int] = {}
        self._returning: dict[int, _Leaving] = {}
        """Pages on their way out, each with the give-back that its unmapping waits for."""
        self._leaving: list[_Leaving] = []
        self._going: int | None = None
        """The page whose unmapping has begun: it can no longer stay."""
        self._stuck: set[int] = set()
        """Pages given back that could not be unmapped: idle, but nobody else's."""
        self._failure: Exception | None = None
        self._ahead: dict[int, Future[None]] = {}
        self._open = True
        stock.thread.attach()

    @property
    def committed_bytes(self) -> int:
        """Bytes behind the range, without the pages on their way out."""
        with self._moved:
            return (len(self._handles) - len(self._returning) - len(self._stuck)) * self._page

    @property
    def leaving_bytes(self) -> int:
        """Bytes given back that are still mapped."""
        return len(self._returning) * self._page

    def commit(self, offset: int, length: int) -> None:
        """Back the span with zeroed pages; pages that are backed already keep their contents.

        A page that the helper is mapping or unmapping is waited for; one on its way out is kept and zeroed. Raises
        MemoryError where the device has no memory, OSError where the driver fails; pages of the span backed before the
        failure stay, and `give_back` undoes them.
        """
        pages = self._span(offset, length)
        for page in pages:
            future = self._ahead.pop(page, None)
            if future is not None:
                future.result()
        self._keep(pages)
        with self._moved:
            self._moved.wait_for(lambda: self._going not in pages)
        self._back(pages)

    def commit_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Let the helper back pages of the spans (offset, length), ascending, that nothing backs yet. A failure
        surfaces in the `commit` that needs one of them, or never."""
        wanted = [page for offset, length in spans for page in self._span(offset, length)]
        # Here, not in the commit: by then they may have left, and a round would map them.
        self._keep(wanted)
        with self._moved:
            pages = [p for p in wanted if (p not in self._handles or p == self._going) and p not in self._ahead]
        if pages:
            self._ahead.update(dict.fromkeys(pages, self._stock.thread.soon(partial(self._back, pages))))

    def give_back(self, offset: int, length: int) -> None:
        """Return the span's pages once everything enqueued so far has ended; it stays reserved."""
        pages = self._span(offset, length)
        for page in pages:
            future = self._ahead.pop(page, None)
            if future is not None:
                future.exception()  # never cancelled: it backs pages of other spans, too
        with self._moved:
            leaving = [p for p in pages if p in self._handles and p not in self._returning and p not in self._stuck]
        if not leaving:
            return
        entry = _Leaving(self._driver.mark(), deque(leaving))
        with self._moved:
            self._returning.update(dict.fromkeys(leaving, entry))
            self._leaving.append(entry)
        self._stock.leave(len(leaving))
        self._stock.thread.later(partial(self._leave, entry))

    def close(self) -> None:
        """Return everything. Nothing may point into the range then. Calling it again does nothing."""
        if not self._open:
            return
        for future in set(self._ahead.values()):
            if not future.cancel():
                future.exception()
        self._ahead.clear()
        if self._leaving:
            self._stock.thread.soon(self._abandon).result()
        self._open = False
        try:
            self._driver.wait()
            for entry in self._leaving:
                if not entry.passed:
                    self._driver.passed(entry.event)
            self._leaving.clear()
            for page in list(self._handles):
                self._unmap(page)
            self._driver.free_reserved(self.address, self.length)
        finally:
            self._stock.thread.detach()

    def _abandon(self) -> None:
        """In the helper's thread: no step of this range touches it from here on."""
        self._open = False

    def check_integrity(self) -> None:
        """Hold the page map against itself. Raises RuntimeError naming what differs, or what the driver refused."""
        with self._moved:
            if self._failure is not None:
                raise RuntimeError(f"a page could not be given back: {self._failure}; stuck: {sorted(self._stuck)}")
            lost = [p for p, e in self._returning.items() if e not in self._leaving or p not in (*e.pages, self._going)]
            if lost:
                raise RuntimeError(f"pages {sorted(lost)} are on their way out, but nobody unmaps them")
            stray = (self._returning.keys() | self._stuck) - self._handles.keys()
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

    def _keep(self, pages: Sequence[int]) -> None:
        """Of pages on their way out, keep those that can stay, zeroed behind their last reader."""
        with self._moved:
            stay = [p for p in pages if p in self._returning and p != self._going]
            for page in stay:
                del self._returning[page]
            stuck = self._stuck.intersection(pages)
            self._stuck -= stuck
        self._stock.leave(-len(stay))
        for first, count in _runs(sorted({*stay, *stuck})):
            self._driver.zero(self.address + first * self._page, count * self._page)

    def _back(self, pages: Sequence[int]) -> None:
        mapped: dict[int, int] = {}
        try:
            for page in pages:
                if page in self._handles:
                    continue
                handle = self._stock.take()
                try:
                    self._driver.map(self.address + page * self._page, handle)
                except BaseException:
                    self._stock.put(handle)
                    raise
                mapped[page] = handle
        finally:
            self._allow(mapped)

    def _allow(self, mapped: dict[int, int]) -> None:
        """Take mapped pages into the range, open to the device and zeroed; where they cannot be opened, none."""
        runs = [(self.address + first * self._page, count * self._page) for first, count in _runs(list(mapped))]
        try:
            for at, length in runs:
                self._driver.allow(at, length)
        except BaseException:
            for page, handle in mapped.items():
                self._driver.unmap(self.address + page * self._page)
                self._stock.put(handle)
            raise
        with self._moved:
            self._handles.update(mapped)
        for at, length in runs:
            self._driver.zero(at, length)

    def _leave(self, entry: _Leaving) -> Progress:
        """In the helper's thread: unmap one page of a give-back whose readers have ended."""
        if not self._open:
            return Progress.OVER
        try:
            if not entry.passed and not self._driver.passed(entry.event):
                return Progress.WAITING
        except Exception as failure:  # noqa: BLE001 - told by check_integrity
            return self._give_up(entry, failure)
        entry.passed = True
        with self._moved:
            page = self._next(entry)
            self._going = page
            if page is None:
                self._leaving.remove(entry)
                return Progress.OVER
        try:
            self._unmap(page)
        except Exception as failure:  # noqa: BLE001 - told by check_integrity
            self._stick(page, failure)
        finally:
            with self._moved:
                self._going = None
                self._moved.notify_all()
        return Progress.MORE

    def _next(self, entry: _Leaving) -> int | None:
        """The next page that has not been kept since, nor kept and given back again."""
        while entry.pages:
            page = entry.pages.popleft()
            if self._returning.get(page) is entry:
                return page
        return None

    def _give_up(self, entry: _Leaving, failure: Exception) -> Progress:
        entry.passed = True
        with self._moved:
            for page in entry.pages:
                if self._returning.get(page) is entry:
                    self._stick(page, failure)
            self._leaving.remove(entry)
        return Progress.OVER

    def _stick(self, page: int, failure: Exception) -> None:
        with self._moved:
            self._failure = failure
            if self._returning.pop(page, None) is None:
                return
            self._stuck.add(page)
        self._stock.leave(-1)

    def _unmap(self, page: int) -> None:
        self._driver.unmap(self.address + page * self._page)
        with self._moved:
            handle = self._handles.pop(page)
            leaving = self._returning.pop(page, None)
            self._stuck.discard(page)
        if leaving is None:
            self._stock.put(handle)
        else:
            self._stock.put_left(handle)


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
