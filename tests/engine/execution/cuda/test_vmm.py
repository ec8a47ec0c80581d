"""Device ranges against a driver of our own that refuses what the real one would."""

from __future__ import annotations

import random
import threading

import pytest

from engine.execution.cuda.page_stock import STOCK_PAGES, OutOfDeviceMemoryError, PageStock
from engine.execution.cuda.vmm import CudaRange
from tests.support.fake_driver import PAGE, FakeDriver


def test_commit_maps_zeroes_and_keeps_what_is_there() -> None:
    driver = FakeDriver()
    block = CudaRange(10 * PAGE - 1, PageStock(driver))
    block.commit(0, 2 * PAGE)
    block.commit(PAGE, 3 * PAGE)
    assert block.length == 10 * PAGE
    assert block.committed_bytes == 4 * PAGE
    assert driver.zeroed == [block.address + i * PAGE for i in range(4)]
    block.close()
    block.close()
    assert not driver.maps
    assert not driver.reserved


def test_pages_leave_only_behind_their_readers() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange(8 * PAGE, stock)
    block.commit(0, 6 * PAGE)
    block.give_back(2 * PAGE, 4 * PAGE)
    assert (block.committed_bytes, block.leaving_bytes, stock.idle) == (2 * PAGE, 4 * PAGE, 4)
    block.check_integrity()
    assert stock.thread.soon(lambda: None).result() is None
    assert len(driver.maps) == 6
    driver.done = driver.events
    stock.thread.wait_until_idle()
    assert (len(driver.maps), block.leaving_bytes, stock.idle) == (2, 0, 4)
    block.commit(2 * PAGE, PAGE)
    assert (stock.live, stock.spare) == (6, 3)
    assert stock.trim() == 3 * PAGE
    assert len(driver.handles) == 3
    block.close()


def test_a_page_wanted_again_before_it_left_stays_and_is_zeroed() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange(4 * PAGE, stock)
    block.commit(0, 4 * PAGE)
    block.give_back(PAGE, 3 * PAGE)
    driver.zeroed.clear()
    block.commit(2 * PAGE, PAGE)
    assert driver.zeroed == [block.address + 2 * PAGE]
    driver.done = driver.events
    stock.thread.wait_until_idle()
    assert set(driver.maps) == {block.address, block.address + 2 * PAGE}
    block.check_integrity()
    block.close()


def test_a_page_wanted_ahead_before_it_left_stays() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange(4 * PAGE, stock)
    block.commit(0, 2 * PAGE)
    block.give_back(0, 2 * PAGE)
    driver.zeroed.clear()
    block.commit_ahead([(0, PAGE)])
    driver.done = driver.events
    stock.thread.wait_until_idle()
    assert set(driver.maps) == {block.address}
    assert driver.zeroed == [block.address]
    block.commit(0, PAGE)
    assert [name for name, _, _ in driver.calls] == ["map", "map", "unmap"]
    block.close()


def test_a_page_kept_and_given_back_again_leaves_behind_its_later_readers() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange(4 * PAGE, stock)
    block.commit(0, 2 * PAGE)
    block.give_back(0, 2 * PAGE)
    block.commit(0, PAGE)
    block.give_back(0, PAGE)
    driver.done = 1
    assert driver.wait_for(lambda: len(driver.maps) == 1)
    stock.thread.soon(lambda: None).result()
    assert set(driver.maps) == {block.address}
    block.check_integrity()
    driver.done = 2
    stock.thread.wait_until_idle()
    assert not driver.maps
    block.close()


def test_a_failed_commit_is_undone_by_giving_back() -> None:
    driver = FakeDriver(pages=3)
    stock = PageStock(driver)
    block = CudaRange(8 * PAGE, stock)
    block.commit(0, PAGE)
    with pytest.raises(MemoryError):
        block.commit(PAGE, 4 * PAGE)
    block.give_back(PAGE, 4 * PAGE)
    driver.wait()
    stock.thread.wait_until_idle()
    assert block.committed_bytes == PAGE
    assert stock.live == 3
    block.check_integrity()
    block.close()


def test_the_stock_keeps_a_bounded_number_of_handles() -> None:
    driver = FakeDriver()
    stock = PageStock(driver)
    block = CudaRange((STOCK_PAGES + 10) * PAGE, stock)
    block.commit(0, (STOCK_PAGES + 10) * PAGE)
    block.close()
    assert stock.spare == stock.live == len(driver.handles) == STOCK_PAGES


def test_a_commit_waits_for_the_helper_and_takes_its_page() -> None:
    driver = FakeDriver()
    block = CudaRange(4 * PAGE, PageStock(driver))
    driver.gate = threading.Event()
    block.commit_ahead([(0, 2 * PAGE)])
    threading.Timer(0.05, driver.gate.set).start()
    block.commit(0, 2 * PAGE)
    assert block.committed_bytes == 2 * PAGE
    assert len(driver.handles) == 2
    block.close()


def test_the_helpers_failure_surfaces_where_the_page_is_needed() -> None:
    driver = FakeDriver(pages=1)
    block = CudaRange(4 * PAGE, PageStock(driver))
    block.commit_ahead([(0, 2 * PAGE)])
    with pytest.raises(OutOfDeviceMemoryError):
        block.commit(0, 2 * PAGE)
    block.give_back(0, 2 * PAGE)
    block.check_integrity()
    block.close()


@pytest.mark.parametrize(("offset", "length"), [(1, PAGE), (0, PAGE + 1), (-PAGE, PAGE), (3 * PAGE, 2 * PAGE)])
def test_spans_that_are_not_pages_of_the_range_are_refused(offset: int, length: int) -> None:
    block = CudaRange(4 * PAGE, PageStock(FakeDriver()))
    with pytest.raises(ValueError, match="not whole pages"):
        block.commit(offset, length)


def test_random_histories_keep_the_books() -> None:
    rng = random.Random(4)
    driver = FakeDriver(pages=40)
    stock = PageStock(driver)
    blocks = [CudaRange(16 * PAGE, stock) for _ in range(3)]
    getting_on = threading.Event()

    def device() -> None:
        while not getting_on.wait(0.0005):
            driver.done = driver.events

    worker = threading.Thread(target=device)
    worker.start()
    for _ in range(600):
        block = rng.choice(blocks)
        first = rng.randrange(16)
        count = rng.randrange(16 - first)
        match rng.randrange(4):
            case 0 | 1:
                try:
                    block.commit(first * PAGE, count * PAGE)
                except MemoryError:
                    block.give_back(first * PAGE, count * PAGE)
            case 2:
                block.give_back(first * PAGE, count * PAGE)
            case 3:
                block.commit_ahead([(first * PAGE, count * PAGE)])
        block.check_integrity()
    for block in blocks:
        block.close()
    getting_on.set()
    worker.join()
    assert not driver.maps
    assert stock.live == stock.spare == stock.idle == len(driver.handles)
