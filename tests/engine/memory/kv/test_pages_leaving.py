"""Pages that the helper unmaps: raced by commits, wanted in a shortage, refused by the driver, cut off by shutdown."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.execution.cuda.memory import GpuProbe
from engine.execution.cuda.page_stock import STOCK_PAGES, OutOfDeviceMemoryError, PageStock
from engine.execution.cuda.page_thread import PageThread, Progress
from engine.execution.cuda.vmm import CudaRange
from tests.support.fake_driver import PAGE, FakeDriver, HostMemoryDriver
from tests.support.fake_gpu import FakeGpu
from tests.support.patience import LONG_S


class Held:
    """A range of `pages` committed pages on a driver of `memory` pages, the first unmap held up at a gate."""

    def __init__(self, pages: int, memory: int = 1000) -> None:
        self.driver = FakeDriver(memory)
        self.gate = self.driver.unmap_gate = threading.Event()
        self.stock = PageStock(self.driver)
        self.block = CudaRange(16 * PAGE, self.stock)
        self.block.commit(0, pages * PAGE)

    def give_back(self, first: int, count: int) -> None:
        """Give pages back, and let the unmapping of the first begin."""
        begun = len(self.unmapped)
        self.block.give_back(first * PAGE, count * PAGE)
        self.driver.done = self.driver.events
        assert self.driver.wait_for(lambda: len(self.unmapped) > begun)

    @property
    def unmapped(self) -> list[int]:
        return [at for name, at, _ in self.driver.calls if name == "unmap"]

    def page(self, index: int) -> int:
        return self.block.address + index * PAGE

    def close(self) -> None:
        self.gate.set()
        self.block.check_integrity()
        self.block.close()
        assert not self.driver.maps
        assert self.stock.idle == self.stock.spare == self.stock.live == len(self.driver.handles)


def test_a_page_wanted_while_it_is_unmapped_is_mapped_anew() -> None:
    held = Held(3)
    held.give_back(0, 3)
    threading.Timer(0.05, held.gate.set).start()
    held.block.commit(0, 3 * PAGE)
    assert held.unmapped == [held.page(0)]
    assert [at for name, at, _ in held.driver.calls[4:] if name == "map"] == [held.page(0)]
    assert held.driver.zeroed[3:] == [held.page(1), held.page(2), held.page(0)]
    held.close()


def test_a_page_wanted_ahead_while_it_is_unmapped_is_mapped_by_the_helper() -> None:
    held = Held(3)
    held.give_back(0, 3)
    held.block.commit_ahead([(0, 3 * PAGE)])
    held.gate.set()
    held.block.commit(0, 3 * PAGE)
    (mapper,) = [thread for name, _, thread in held.driver.calls[4:] if name == "map"]
    assert mapper != threading.get_ident()
    held.close()


def test_what_is_wanted_goes_before_what_goes_back() -> None:
    held = Held(8)
    held.give_back(0, 8)
    held.block.commit_ahead([(8 * PAGE, PAGE)])
    held.gate.set()
    held.stock.thread.wait_until_idle()
    assert [name for name, _, _ in held.driver.calls[8:]] == ["unmap", "map", *["unmap"] * 7]
    held.close()


@pytest.mark.parametrize("by_helper", [False, True])
def test_who_needs_a_page_in_a_shortage_gets_one_on_its_way_out(by_helper: bool) -> None:
    driver = FakeDriver(pages=4)
    stock = PageStock(driver)
    block = CudaRange(16 * PAGE, stock)
    block.commit(0, 4 * PAGE)
    block.give_back(0, 3 * PAGE)
    threading.Timer(0.05, driver.wait).start()
    if by_helper:
        block.commit_ahead([(8 * PAGE, 3 * PAGE)])
    block.commit(8 * PAGE, 3 * PAGE)
    assert (block.committed_bytes, block.leaving_bytes) == (4 * PAGE, 0)
    with pytest.raises(OutOfDeviceMemoryError):
        block.commit(12 * PAGE, PAGE)
    block.check_integrity()
    block.close()


def test_pages_on_their_way_out_are_available() -> None:
    driver = HostMemoryDriver()
    stock = PageStock(driver)
    probe = GpuProbe(FakeGpu(driver_=driver), stock)
    before = probe.read()
    block = CudaRange(100 * PAGE, stock)
    block.commit(0, 100 * PAGE)
    assert probe.read().available == before.available - 100 * PAGE
    assert probe.read().own == before.own + 100 * PAGE
    driver.unmap_gate = threading.Event()
    block.give_back(0, 100 * PAGE)
    assert probe.read() == before
    driver.unmap_gate.set()
    stock.thread.wait_until_idle()
    assert stock.spare == STOCK_PAGES
    assert probe.read() == before
    block.close()


def test_a_page_that_cannot_be_unmapped_is_told_of_and_kept() -> None:
    held = Held(4)
    held.driver.failing = {"unmap"}
    held.give_back(0, 2)
    held.gate.set()
    held.stock.thread.wait_until_idle()
    assert (held.block.committed_bytes, held.block.leaving_bytes, held.stock.idle) == (2 * PAGE, 0, 0)
    with pytest.raises(RuntimeError, match=r"could not be given back: .*scripted failure of unmap; stuck: \[0, 1\]"):
        held.block.check_integrity()
    held.block.give_back(0, 4 * PAGE)
    held.driver.failing = set()
    held.driver.done = held.driver.events
    held.stock.thread.wait_until_idle()
    assert set(held.driver.maps) == {held.page(0), held.page(1)}
    held.block.commit(0, PAGE)
    assert (held.block.committed_bytes, held.driver.zeroed[-1]) == (PAGE, held.page(0))
    held.block.close()
    assert not held.driver.maps


def test_an_event_that_fails_keeps_its_pages_and_the_others_leave() -> None:
    held = Held(4)
    held.gate.set()
    held.driver.failing = {"passed"}
    held.block.give_back(0, PAGE)
    held.stock.thread.wait_until_idle()
    held.driver.failing = set()
    held.block.give_back(PAGE, PAGE)
    held.driver.done = held.driver.events
    held.stock.thread.wait_until_idle()
    assert set(held.driver.maps) == {held.page(i) for i in (0, 2, 3)}
    with pytest.raises(RuntimeError, match="scripted failure of passed"):
        held.block.check_integrity()
    held.block.close()
    assert not held.driver.maps


def test_a_handle_that_cannot_be_released_stays_counted() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange((STOCK_PAGES + 2) * PAGE, stock)
    block.commit(0, block.length)
    driver.failing = {"release"}
    block.give_back(0, block.length)
    driver.done = driver.events
    stock.thread.wait_until_idle()
    assert (stock.spare, stock.idle, stock.live) == (STOCK_PAGES, STOCK_PAGES, STOCK_PAGES + 2)
    assert not driver.maps
    with pytest.raises(RuntimeError, match="scripted failure of release"):
        block.check_integrity()
    block.close()


def test_pages_that_cannot_be_opened_are_not_taken() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange(4 * PAGE, stock)
    driver.failing = {"allow"}
    with pytest.raises(OSError, match="scripted failure of allow"):
        block.commit(0, 3 * PAGE)
    assert (block.committed_bytes, len(driver.maps), stock.spare) == (0, 0, 3)
    driver.failing = set()
    block.commit(0, 3 * PAGE)
    block.close()


@pytest.mark.parametrize("begun", [False, True])
def test_a_range_closed_with_work_queued_leaves_nothing(begun: bool) -> None:
    held = Held(6)
    other = CudaRange(4 * PAGE, held.stock)
    other.commit(0, 2 * PAGE)
    if begun:
        held.give_back(0, 5)
    else:
        held.block.give_back(0, 5 * PAGE)
    held.block.commit_ahead([(8 * PAGE, 4 * PAGE)])
    other.give_back(0, PAGE)
    threading.Timer(0.05, held.gate.set).start()
    held.block.close()
    held.block.close()
    assert set(held.driver.maps) >= {other.address + PAGE}
    held.driver.done = held.driver.events
    held.stock.thread.wait_until_idle()
    assert set(held.driver.maps) == {other.address + PAGE}
    assert any(t.name == "tandem-pages" for t in threading.enumerate())
    other.close()
    assert not held.driver.maps
    assert not any(t.name == "tandem-pages" for t in threading.enumerate())
    assert held.stock.idle == held.stock.live == len(held.driver.handles)
    again = CudaRange(4 * PAGE, held.stock)
    again.commit_ahead([(0, PAGE)])
    again.commit(0, PAGE)
    again.close()


class WrittenDriver(FakeDriver):
    """Its pages hold a value, and none may leave before the event behind its last use."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.values: dict[int, int] = {}
        self.readers: dict[int, int] = {}

    def map(self, address: int, handle: int) -> None:
        super().map(address, handle)
        self.values[address] = -1

    def unmap(self, address: int) -> None:
        assert self.done >= self.readers[address], "unmapped under a reader"
        super().unmap(address)
        del self.values[address]

    def zero(self, address: int, length: int) -> None:
        super().zero(address, length)
        self.values.update(dict.fromkeys(range(address, address + length, PAGE), 0))


class ByHand(PageThread):
    """A helper that moves when told to, or when somebody waits for it; the device then ends its work."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__()
        self._driver = driver

    def soon(self, work: Callable[[], None]) -> Future[None]:
        thread = self

        class Waited(Future[None]):
            def result(self, timeout: float | None = None) -> None:
                thread.until(self.done)
                return super().result(LONG_S)

            def exception(self, timeout: float | None = None) -> BaseException | None:
                thread.until(self.done)
                return super().exception(LONG_S)

        future = Waited()
        self._soon.append((future, work))
        return future

    def later(self, step: Callable[[], Progress]) -> None:
        self._later.append(step)

    def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if reached():
                return
            self._driver.wait()
            self.move()
        raise AssertionError("no step of the helper gets there")

    def wait_until_idle(self) -> None:
        while self._later:
            self._driver.wait()
            self._step()

    def move(self) -> None:
        """What the thread would do next."""
        if self._soon:
            future, work = self._soon.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    work()
                except BaseException as failure:  # noqa: BLE001 - handed on, as the thread does
                    future.set_exception(failure)
                else:
                    future.set_result(None)
        elif self._later:
            self._step()


SIZE = 6
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda s: (s[0], min(s[1], SIZE - s[0])))


class Interleavings(RuleBasedStateMachine):
    """Two ranges on a device of nine pages: the engine's calls, the helper's steps and the device's events in every
    order that hypothesis finds, against what was committed and written."""

    MEMORY = 9

    def __init__(self) -> None:
        super().__init__()
        self.driver = WrittenDriver(self.MEMORY)
        self.stock = PageStock(self.driver)
        self.helper = self.stock.thread = ByHand(self.driver)
        self.blocks = [CudaRange(SIZE * PAGE, self.stock) for _ in range(2)]
        self.written: list[dict[int, int]] = [{}, {}]
        self.count = 0

    @rule(which=st.integers(0, 1), span=spans)
    def commit(self, which: int, span: tuple[int, int]) -> None:
        block, written = self.blocks[which], self.written[which]
        pages = range(span[0], span[0] + span[1])
        try:
            block.commit(span[0] * PAGE, span[1] * PAGE)
        except MemoryError:
            # It may have been the helper's failure: as the pool does, give up the span and ask for it.
            self.give_back(which, span)
            while self.helper._soon:
                self.helper.move()
            if sum(b.committed_bytes for b in self.blocks) // PAGE + span[1] > self.MEMORY:
                return
            block.commit(span[0] * PAGE, span[1] * PAGE)
        for page in pages:
            at = block.address + page * PAGE
            assert self.driver.values[at] == written.get(page, 0)
            self.count += 1
            written[page] = self.driver.values[at] = self.count

    @rule(which=st.integers(0, 1), span=spans)
    def commit_ahead(self, which: int, span: tuple[int, int]) -> None:
        self.blocks[which].commit_ahead([(span[0] * PAGE, span[1] * PAGE)])

    @rule(which=st.integers(0, 1), span=spans)
    def give_back(self, which: int, span: tuple[int, int]) -> None:
        block = self.blocks[which]
        left = set(block._returning)
        block.give_back(span[0] * PAGE, span[1] * PAGE)
        for page in range(span[0], span[0] + span[1]):
            self.written[which].pop(page, None)
            if page not in left:
                self.driver.readers[block.address + page * PAGE] = self.driver.events

    @rule()
    def the_device_gets_on(self) -> None:
        self.driver.done = min(self.driver.events, self.driver.done + 1)

    @rule(steps=st.integers(1, 4))
    def the_helper_gets_on(self, steps: int) -> None:
        for _ in range(steps):
            self.helper.move()

    @rule()
    def handles_go_back_to_the_driver(self) -> None:
        self.stock.trim()

    @invariant()
    def the_books_agree(self) -> None:
        committed = sum(b.committed_bytes for b in self.blocks) // PAGE
        leaving = sum(b.leaving_bytes for b in self.blocks) // PAGE
        assert self.stock.live == len(self.driver.handles) == committed + self.stock.idle
        assert (self.stock.idle, len(self.driver.maps)) == (self.stock.spare + leaving, committed + leaving)
        for block, written in zip(self.blocks, self.written, strict=True):
            block.check_integrity()
            assert written.keys() <= block._handles.keys() - block._returning.keys()
            assert all(self.driver.values[block.address + page * PAGE] == value for page, value in written.items())

    def teardown(self) -> None:
        self.driver.readers = defaultdict(int)
        for block in self.blocks:
            block.close()
        assert not self.driver.maps
        assert not self.driver.reserved
        assert self.stock.idle == self.stock.spare == self.stock.live


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, database=None)
TestInterleavings = Interleavings.TestCase
