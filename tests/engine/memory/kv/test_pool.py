"""The KV pool: books, page maps and the kernel's count agree, whatever is committed, given back or refused."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.memory.budget import KvBacking
from engine.memory.kv.host_vm import PAGE_BYTES, HostRange
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.kv.pool import CommitRefused, IntegrityError, KvPool
from engine.memory.pressure import HardFloor, Level, PressureLadder
from tests.support.memory import ScriptedProbe, ScriptedRung

PAGE = 4096
LAYOUT = KvLayout(
    (
        KvTensor("engine", 0, "k", 384),
        KvTensor("engine", 0, "v", 640),
        KvTensor("drafter", 0, "k", 96),
        KvTensor("indexer", 1, "k", 5000),
    )
)


def pages(rows: int, row_bytes: int, page: int = PAGE) -> int:
    return (rows * row_bytes + page - 1) // page


def slot_bytes(rows: int) -> int:
    return PAGE * sum(pages(rows, tensor.row_bytes) for tensor in LAYOUT.tensors)


@pytest.fixture
def make_pool():
    pools: list[KvPool] = []

    def make(**options) -> KvPool:
        options = {"margin_rows": 16, "page_bytes": PAGE, **options}
        pools.append(KvPool(options.pop("layout", LAYOUT), options.pop("windows", [500, 300]), **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def write(pool: KvPool, slot: int, tensor: int, row: int, value: int) -> None:
    size = pool.layout.tensors[tensor].row_bytes
    ctypes.memset(pool.base(slot, tensor) + row * size, value, size)


def read(pool: KvPool, slot: int, tensor: int, row: int) -> bytes:
    size = pool.layout.tensors[tensor].row_bytes
    return ctypes.string_at(pool.base(slot, tensor) + row * size, size)


def test_a_fresh_pool_reserves_windows_and_takes_nothing(make_pool):
    pool = make_pool()
    stats = pool.stats()
    assert stats.enabled
    assert stats.committed_bytes == stats.committed_pages == 0
    assert stats.reserved_bytes == slot_bytes(500) + slot_bytes(300)
    assert (pool.window(0), pool.window(1)) == (500, 300)
    pool.check_integrity(deep=True)


def test_a_commit_backs_the_rows_and_the_margin_and_no_page_more(make_pool):
    pool = make_pool()
    expected = slot_bytes(100 + 16)
    assert pool.pages_to_commit(0, 100) == expected
    assert pool.commit(0, 100) == expected
    assert pool.committed_bytes(0) == expected
    assert pool.committed_rows(0) >= 116
    assert pool.commit(0, pool.committed_rows(0) - 16) == 0
    assert pool.stats().commits == 1
    pool.check_integrity(deep=True)


def test_the_margin_stops_at_the_window_and_rows_past_it_are_a_mistake(make_pool):
    pool = make_pool()
    assert pool.commit(1, 300) == slot_bytes(300)
    assert pool.committed_rows(1) == 300
    with pytest.raises(ValueError, match="window of 300 rows, 301"):
        pool.commit(1, 301)


def test_every_row_of_a_full_window_is_its_own(make_pool):
    pool = make_pool(windows=[40, 40])
    for slot in (0, 1):
        pool.commit(slot, 40)
    for slot in (0, 1):
        for tensor in range(4):
            for row in range(40):
                write(pool, slot, tensor, row, 1 + (slot * 160 + tensor * 40 + row) % 251)
    for slot in (0, 1):
        for tensor in range(4):
            for row in range(40):
                assert set(read(pool, slot, tensor, row)) == {1 + (slot * 160 + tensor * 40 + row) % 251}


def test_release_keeps_the_rows_asked_for_returns_the_margin_and_forgets_the_rest(make_pool):
    pool = make_pool()
    pool.commit(0, 200)
    for row in range(200):
        write(pool, 0, 3, row, 9)
    before = pool.committed_bytes(0)
    freed = pool.release(0, 120)
    assert freed == before - slot_bytes(120)
    assert pool.committed_bytes(0) == slot_bytes(120)
    assert read(pool, 0, 3, 119) == b"\x09" * 5000
    pool.check_integrity(deep=True)
    pool.commit(0, 200)
    first_fresh = -(-pages(120, 5000) * PAGE // 5000)
    for row in range(first_fresh, 200):
        assert read(pool, 0, 3, row) == bytes(5000)
    pool.check_integrity(deep=True)


def test_a_read_cancelled_between_chunks_leaves_only_the_rows_its_conversation_keeps(make_pool):
    pool = make_pool(windows=[4000, 300])
    pool.commit(1, 50)
    beside = pool.committed_bytes(1)
    for end in range(128, 1500, 128):
        pool.commit(0, end)
        for tensor in range(4):
            write(pool, 0, tensor, end - 1, 3)
        pool.check_integrity(deep=True)
    pool.release(0, 256)
    pool.check_integrity(deep=True)
    assert pool.committed_bytes(0) == slot_bytes(256)
    assert pool.committed_bytes(1) == beside
    pool.release(0, 0)
    pool.release(1, 0)
    pool.check_integrity(deep=True)
    assert pool.stats().committed_bytes == 0


def test_books_by_slot_kind_and_page_add_up(make_pool):
    pool = make_pool()
    pool.commit(0, 400)
    pool.commit(1, 10)
    pool.release(0, 30)
    stats = pool.stats()
    assert sum(stats.by_slot) == sum(stats.by_kind.values()) == stats.committed_bytes
    assert stats.committed_bytes == stats.committed_pages * stats.page_bytes
    assert set(stats.by_kind) == {"engine", "drafter", "indexer"}
    assert stats.by_kind["drafter"] == PAGE * (pages(30, 96) + pages(26, 96))
    assert stats.peak_committed_bytes == slot_bytes(416) + slot_bytes(26)
    assert (stats.commits, stats.releases, stats.refused) == (2, 1, 0)


def test_without_the_pool_whole_windows_are_backed_and_stay(make_pool):
    pool = make_pool(backing=KvBacking.WHOLE_WINDOW)
    whole = slot_bytes(500) + slot_bytes(300)
    assert not pool.stats().enabled
    assert pool.stats().committed_bytes == whole == pool.stats().reserved_bytes
    assert pool.commit(0, 500) == 0
    assert pool.release(0, 0) == 0
    assert pool.stats().committed_bytes == whole
    pool.check_integrity(deep=True)


def test_the_shipped_page_size_holds_the_books_too(make_pool):
    pool = make_pool(page_bytes=PAGE_BYTES, margin_rows=256)
    pool.commit(0, 1)
    assert pool.stats().page_bytes == 65536
    assert pool.committed_bytes(0) == 65536 * sum(pages(257, t.row_bytes, 65536) for t in LAYOUT.tensors)
    pool.check_integrity(deep=True)


def test_a_commit_under_the_hard_floor_is_refused_with_the_figures_and_harms_nobody(make_pool):
    pool = make_pool()
    pool.commit(1, 100)
    probe = ScriptedProbe(available=slot_bytes(116) - 1 + 5000)
    pool.guard = HardFloor(probe, 5000, PressureLadder())
    with pytest.raises(CommitRefused, match=r"slot 0 needs .* to hold 100 rows, .* available .* hard floor") as caught:
        pool.commit(0, 100)
    assert caught.value.need == slot_bytes(116)
    assert caught.value.shortfall is not None
    assert caught.value.shortfall.available == probe.available
    assert pool.committed_bytes(0) == 0
    assert pool.stats().refused == 1
    assert pool.commit(1, 100) == 0
    pool.check_integrity(deep=True)
    probe.available += 1
    assert pool.commit(0, 100) == slot_bytes(116)


def test_pressure_takes_an_idle_conversation_before_it_refuses(make_pool):
    pool = make_pool()
    pool.commit(1, 284)
    idle = pool.committed_bytes(1)
    probe = ScriptedProbe(available=slot_bytes(116) - idle)

    class IdleSlot:
        name = "slot 1's idle conversation"
        level = Level.SIDE_CONVERSATION

        def held_bytes(self) -> int:
            return pool.committed_bytes(1)

        def reclaim(self, need: int) -> int:
            freed = pool.release(1, 0)
            probe.available += freed
            return freed

    caches = ScriptedRung("resident", Level.CACHE, [10], probe)
    pool.guard = HardFloor(probe, 0, PressureLadder([caches, IdleSlot()]))
    assert pool.commit(0, 100) == slot_bytes(116)
    assert caches.pieces == []
    assert pool.committed_bytes(1) == 0
    pool.check_integrity(deep=True)


def test_memory_that_the_system_refuses_half_way_is_given_back(make_pool, monkeypatch):
    pool = make_pool()
    pool.commit(0, 20)
    before = pool.committed_bytes(0)
    taken = 0

    real = HostRange.commit

    def commit(self: HostRange, offset: int, length: int) -> None:
        nonlocal taken
        if taken == 2:
            raise MemoryError("scripted")
        taken += 1
        real(self, offset, length)

    monkeypatch.setattr(HostRange, "commit", commit)
    with pytest.raises(CommitRefused, match="the system has no memory"):
        pool.commit(0, 400)
    assert taken == 2
    assert pool.committed_bytes(0) == before
    pool.check_integrity(deep=True)


def test_integrity_names_what_differs(make_pool):
    pool = make_pool()
    pool.commit(0, 50)
    entry = pool._slots[0]
    entry.pages[2] += 1
    with pytest.raises(IntegrityError, match="slot 0 committed bytes"):
        pool.check_integrity()
    entry.pages[2] -= 1
    pool.check_integrity()
    entry.range.give_back(0, PAGE)
    pool.check_integrity()
    with pytest.raises(IntegrityError, match="slot 0 resident bytes"):
        pool.check_integrity(deep=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin_rows": -1}, "TANDEM_KV_MARGIN_ROWS"),
        ({"windows": []}, "window"),
        ({"windows": [10, 0]}, "window"),
        ({"page_bytes": 1000}, "multiple"),
        ({"layout": KvLayout(())}, "layout"),
    ],
)
def test_figures_that_make_no_sense_are_refused_by_name(make_pool, options, message):
    with pytest.raises(ValueError, match=message):
        make_pool(**options)


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model that knows only how many pages back each tensor and which rows were written."""

    WINDOWS = (120, 60, 60)
    MARGIN = 8

    def __init__(self) -> None:
        super().__init__()
        self.probe = ScriptedProbe(available=1 << 40)
        self.pool = KvPool(
            LAYOUT,
            self.WINDOWS,
            margin_rows=self.MARGIN,
            page_bytes=PAGE,
            guard=HardFloor(self.probe, 0, PressureLadder()),
        )
        self.pages = [[0] * len(LAYOUT.tensors) for _ in self.WINDOWS]
        self.peak = 0
        self.written: dict[tuple[int, int, int], int] = {}

    def total(self, slot: int) -> int:
        return PAGE * sum(self.pages[slot])

    @rule(slot=st.integers(0, 2), rows=st.integers(0, 120))
    def commit(self, slot: int, rows: int) -> None:
        rows = min(rows, self.WINDOWS[slot])
        before = self.total(slot)
        target = min(rows + self.MARGIN, self.WINDOWS[slot])
        for tensor, spec in enumerate(LAYOUT.tensors):
            self.pages[slot][tensor] = max(self.pages[slot][tensor], pages(target, spec.row_bytes))
        predicted = self.pool.pages_to_commit(slot, rows)
        assert self.pool.commit(slot, rows) == self.total(slot) - before == predicted
        assert self.pool.committed_rows(slot) >= target
        self.peak = max(self.peak, sum(self.total(s) for s in range(3)))

    @rule(slot=st.integers(0, 2), keep=st.integers(0, 130))
    def release(self, slot: int, keep: int) -> None:
        before = self.total(slot)
        for tensor, spec in enumerate(LAYOUT.tensors):
            self.pages[slot][tensor] = min(self.pages[slot][tensor], pages(keep, spec.row_bytes))
            backed = self.pages[slot][tensor] * PAGE // spec.row_bytes
            for key in [k for k in self.written if k[:2] == (slot, tensor) and k[2] >= backed]:
                del self.written[key]
        assert self.pool.release(slot, keep) == before - self.total(slot)

    @rule(slot=st.integers(0, 2), rows=st.integers(1, 120))
    def refused(self, slot: int, rows: int) -> None:
        rows = min(rows, self.WINDOWS[slot])
        need = self.pool.pages_to_commit(slot, rows)
        held, self.probe.available = self.probe.available, need - 1
        if need > 0:
            with pytest.raises(CommitRefused):
                self.pool.commit(slot, rows)
        else:
            assert self.pool.commit(slot, rows) == 0
        self.probe.available = held

    @precondition(lambda self: any(self.pool.committed_rows(s) for s in range(3)))
    @rule(data=st.data(), value=st.integers(1, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        slot = data.draw(st.sampled_from([s for s in range(3) if self.pool.committed_rows(s)]))
        tensor = data.draw(st.integers(0, len(LAYOUT.tensors) - 1))
        row = data.draw(st.integers(0, self.pool.committed_rows(slot) - 1))
        write(self.pool, slot, tensor, row, value)
        self.written[slot, tensor, row] = value

    @rule()
    def the_kernel_agrees(self) -> None:
        self.pool.check_integrity(deep=True)

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        stats = self.pool.stats()
        assert stats.by_slot == [self.total(slot) for slot in range(3)]
        for slot, window in enumerate(self.WINDOWS):
            whole = min(n * PAGE // spec.row_bytes for n, spec in zip(self.pages[slot], LAYOUT.tensors, strict=True))
            assert self.pool.committed_rows(slot) == min(whole, window)
        assert sum(stats.by_kind.values()) == stats.committed_bytes == sum(stats.by_slot)
        assert stats.peak_committed_bytes == self.peak
        for (slot, tensor, row), value in self.written.items():
            assert set(read(self.pool, slot, tensor, row)) == {value}

    def teardown(self) -> None:
        self.pool.check_integrity(deep=True)
        self.pool.close()


PoolMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, database=None)
TestPoolAgainstModel = PoolMachine.TestCase
