"""Pages taken by the helper thread: no round maps one, books stay whole, and what cannot be had is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.execution.cuda.page_stock import PageStock
from engine.execution.cuda.vmm import device_ranges
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.kv.pool import CommitRefused, KvPool
from tests.support.fake_driver import PAGE, FakeDriver

ROWS = 64
"""Rows of a page of each tensor."""
LAYOUT = KvLayout((KvTensor("engine", 0, "k", PAGE // ROWS), KvTensor("engine", 0, "v", PAGE // ROWS)))
MARGIN = 16


class WatchedDriver(FakeDriver):
    """Work ends at once, as on an idle device."""

    @property
    def mappers(self) -> list[int]:
        """The threads that mapped pages, a call each."""
        return [thread for name, _, thread in self.calls if name == "map"]

    def passed(self, event: int) -> bool:
        return True


@pytest.fixture
def driver() -> WatchedDriver:
    return WatchedDriver()


@pytest.fixture
def pool(driver: WatchedDriver) -> Iterator[KvPool]:
    made = KvPool(LAYOUT, [10 * ROWS] * 2, margin_rows=MARGIN, ranges=device_ranges(PageStock(driver)))
    yield made
    made.check_integrity(deep=True)
    made.close()
    assert not driver.maps
    assert not driver.reserved
    assert not any(t.name.startswith("tandem-pages") for t in threading.enumerate())


def test_no_round_maps_a_page(pool: KvPool, driver: WatchedDriver) -> None:
    taken = pool.commit(0, 1)
    assert driver.mappers == [threading.get_ident()] * 2
    for rows in range(2, 10 * ROWS + 1):
        taken += pool.commit(0, rows)
    assert threading.get_ident() not in driver.mappers[2:]
    assert len(driver.mappers) == 20
    assert taken == pool.committed_bytes(0) == 20 * PAGE
    assert pool.pages_to_commit(0, 10 * ROWS) == 0


def own_calls(driver: WatchedDriver) -> int:
    return sum(thread == threading.get_ident() for _, _, thread in driver.calls)


def test_a_commit_of_backed_rows_asks_nothing_of_the_driver(pool: KvPool, driver: WatchedDriver) -> None:
    """Through growth, the margin on its way, a release and the window's end."""
    left_alone = called = 0
    for rows in [*range(1, 10 * ROWS + 1), 5, 600, 70, *range(60, 200)]:
        if rows == 5:
            pool.release(0, 3)
        before = own_calls(driver)
        taken = pool.commit(0, rows)
        if taken == 0 and own_calls(driver) == before:
            left_alone += 1
        else:
            called += 1
        assert rows <= pool.committed_rows(0)
    assert called < left_alone / 10


def test_no_round_unmaps_a_page(pool: KvPool, driver: WatchedDriver) -> None:
    driver.unmap_gate = threading.Event()
    pool.commit(1, 1)
    pool.commit(0, 9 * ROWS)
    assert pool.release(0, 0) == 20 * PAGE
    for rows in range(2, ROWS + 1):
        pool.commit(1, rows)
    assert pool.committed_bytes(0) == 0
    assert len(driver.maps) >= 20
    driver.unmap_gate.set()
    pool.release(1, ROWS)
    pool.commit(0, 3 * ROWS)
    assert threading.get_ident() not in {thread for name, _, thread in driver.calls if name == "unmap"}


def test_a_slot_taken_again_keeps_its_pages_and_no_round_maps_them(pool: KvPool, driver: WatchedDriver) -> None:
    driver.unmap_gate = threading.Event()
    pool.commit(0, 8 * ROWS)
    pool.release(0, 0)
    driver.zeroed.clear()
    threading.Timer(0.05, driver.unmap_gate.set).start()
    pool.commit(0, 1)
    mapped = len(driver.mappers)
    for rows in range(2, 8 * ROWS + 2):
        pool.commit(0, rows)
    assert threading.get_ident() not in driver.mappers[mapped:]
    assert len(set(driver.zeroed)) == 2 * 9


def test_a_pool_whose_driver_fails_keeps_its_books(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.failing = {"map"}
    with pytest.raises(OSError, match="scripted failure of map"):
        pool.commit(1, 3 * ROWS)
    pool.ahead(0, 2 * ROWS)
    with pytest.raises(OSError, match="scripted failure of map"):
        pool.commit(0, 2 * ROWS)
    pool.check_integrity(deep=True)
    assert pool.stats().committed_bytes == 2 * PAGE
    driver.failing = set()
    assert pool.commit(0, 2 * ROWS) == 4 * PAGE


def test_a_round_does_not_wait_for_pages_that_it_does_not_need(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.gate = threading.Event()
    assert pool.commit(0, ROWS - 1) == 0
    assert pool.commit(0, ROWS) == 0
    assert len(driver.mappers) == 2
    assert pool.committed_rows(0) == 2 * ROWS
    driver.gate.set()
    assert pool.commit(0, ROWS + 1) == 2 * PAGE
    assert len(driver.mappers) == 4


def test_the_next_chunk_is_taken_while_one_is_read(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 10)
    pool.ahead(0, 3 * ROWS)
    assert pool.commit(0, 3 * ROWS) == 6 * PAGE
    assert driver.mappers.count(threading.get_ident()) == 2


def test_what_the_helper_cannot_have_is_refused_where_it_is_needed(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.left = 0
    assert pool.commit(0, ROWS) == 0
    with pytest.raises(CommitRefused, match="slot 0 needs"):
        pool.commit(0, ROWS + 1)
    assert (pool.committed_bytes(0), pool.committed_rows(0)) == (2 * PAGE, ROWS)
    pool.check_integrity(deep=True)
    driver.left = 100
    assert pool.commit(0, ROWS + 1) == 2 * PAGE
    assert pool.commit(0, 3 * ROWS) == 4 * PAGE


def test_a_margin_that_is_not_to_be_had_costs_only_the_margin(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.left = 3
    pool.ahead(0, 3 * ROWS)
    assert pool.commit(0, ROWS + 1) == 2 * PAGE


def test_a_guard_without_room_stops_the_margin_alone(pool: KvPool) -> None:
    class Full:
        def make_room(self, need: int) -> object:
            return object()

    pool.commit(0, 1)
    pool.guard = Full()  # type: ignore[assignment]
    assert pool.commit(0, ROWS) == 0
    assert pool.committed_bytes(0) == 2 * PAGE
    pool.guard = None


def test_a_slot_given_back_while_the_helper_works_leaves_nothing(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.gate = threading.Event()
    pool.ahead(0, 5 * ROWS)
    pool.ahead(1, 2 * ROWS)
    threading.Timer(0.05, driver.gate.set).start()
    assert pool.release(0, 0) == 12 * PAGE
    assert pool.committed_bytes(0) == 0
    assert pool.commit(0, 1) == 2 * PAGE
    assert pool.commit(1, 2 * ROWS) == 6 * PAGE


def test_rows_kept_while_the_helper_works_are_backed(pool: KvPool, driver: WatchedDriver) -> None:
    pool.commit(0, 1)
    driver.gate = threading.Event()
    pool.ahead(0, 5 * ROWS)
    threading.Timer(0.05, driver.gate.set).start()
    pool.release(0, 3 * ROWS)
    assert pool.commit(0, 3 * ROWS - MARGIN) == 4 * PAGE
    assert pool.committed_rows(0) == 3 * ROWS
