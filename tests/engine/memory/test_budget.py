"""Floors, slot fitting, and a memory split that is counted and therefore adds up."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory.budget import (
    SPLIT_TOLERANCE,
    Floors,
    KvBacking,
    Named,
    SlotCost,
    SplitMeter,
    default_floors,
    fit_slots,
    split_total,
)
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.kv.pool import KvPool
from engine.memory.probe import HOST, MemoryReading, open_probe
from engine.memory.sizes import GIB, MIB, size


def test_floors_by_the_box():
    assert default_floors(200 * GIB) == Floors(15 * GIB, 10 * GIB)
    assert default_floors(20 * GIB) == Floors(2 * GIB, 2 * GIB * 2 // 3)
    assert default_floors(20 * GIB, floor=6 * GIB) == Floors(6 * GIB, 4 * GIB)
    assert default_floors(20 * GIB, floor=6 * GIB, hard_floor=0) == Floors(6 * GIB, 0)


def test_floors_that_make_no_sense_name_their_setting():
    with pytest.raises(ValueError, match=r"TANDEM_PARALLEL_FLOOR_GB.*-1 GiB"):
        default_floors(20 * GIB, floor=-GIB)
    with pytest.raises(ValueError, match=r"TANDEM_KV_HARD_FLOOR_GB.*2 GiB.*3 GiB"):
        default_floors(20 * GIB, floor=2 * GIB, hard_floor=3 * GIB)
    with pytest.raises(ValueError, match="TANDEM_PARALLEL_FLOOR_GB must be below the 20 GiB of memory, got 20 GiB"):
        default_floors(20 * GIB, floor=20 * GIB)


COST = SlotCost(engine_bytes=GIB, state_bytes=GIB // 2, row_bytes=MIB)


def test_pooled_slots_cost_their_state_and_whole_windows_their_kv():
    windows = [4096, 1024, 1024]
    pooled = fit_slots(3, windows, COST, available=5 * GIB, floor=2 * GIB, kv=KvBacking.POOLED)
    assert (pooled.slots, pooled.reason) == (3, None)
    whole = fit_slots(3, windows, COST, available=9 * GIB, floor=2 * GIB, kv=KvBacking.WHOLE_WINDOW)
    assert whole.slots == 2
    assert whole.reason == (
        "2 of 3 slots: slot 2 takes 1.5 GiB, its whole window counted because the KV pool is off, and 0 B is left "
        "above the 2 GiB floor (9 GiB available, 1 GiB for the engine itself, 6 GiB for the slots before it)"
    )


def test_one_slot_always_starts_and_the_reason_still_has_the_numbers():
    fit = fit_slots(2, [4096, 4096], COST, available=2 * GIB, floor=2 * GIB, kv=KvBacking.WHOLE_WINDOW)
    assert fit.slots == 1
    assert fit.reason is not None
    assert fit.reason.startswith("1 of 2 slots: slot 1 takes 4.5 GiB")


def test_one_slot_that_does_not_fit_above_the_floor_says_so():
    fit = fit_slots(1, [4096], COST, available=2 * GIB, floor=2 * GIB, kv=KvBacking.WHOLE_WINDOW)
    assert fit.slots == 1
    assert fit.reason is not None
    assert "slot 0 takes 4.5 GiB" in fit.reason


@pytest.mark.parametrize(("requested", "windows"), [(0, []), (2, [10])])
def test_slot_counts_that_make_no_sense(requested, windows):
    with pytest.raises(ValueError, match=str(requested)):
        fit_slots(requested, windows, COST, available=GIB, floor=0, kv=KvBacking.POOLED)


@given(
    windows=st.lists(st.integers(1, 64), min_size=1, max_size=8),
    available=st.integers(0, 400),
    floor=st.integers(0, 50),
    kv=st.sampled_from(KvBacking),
)
def test_as_many_slots_as_fit_and_no_more(windows, available, floor, kv):
    cost = SlotCost(engine_bytes=10, state_bytes=3, row_bytes=1)
    fit = fit_slots(len(windows), windows, cost, available=available, floor=floor, kv=kv)

    def left(slots: int) -> int:
        kv_rows = 0 if kv is KvBacking.POOLED else sum(windows[:slots])
        return available - floor - 10 - 3 * slots - kv_rows

    assert 1 <= fit.slots <= len(windows)
    assert fit.slots == 1 or left(fit.slots) >= 0
    assert fit.slots == len(windows) or left(fit.slots + 1) < 0
    assert (fit.reason is None) == (left(len(windows)) >= 0)


def reading(available: int, occupied: int, own: int) -> MemoryReading:
    return MemoryReading(HOST, total=1000, available=available, occupied=occupied, own=own)


def test_outside_is_the_use_before_plus_the_others_gain_plus_what_no_entry_names():
    meter = SplitMeter(reading(available=800, occupied=150, own=10))
    # This process took 120 (100 of it named), others took 30.
    split = meter.split(reading(available=650, occupied=300, own=130), Named(weights=60, kv_committed=40))
    assert split.outside == 200 + 30 + 20
    assert split_total(split) == 1000 - 650


def test_entries_that_claim_more_than_the_process_holds_show_in_the_sum():
    meter = SplitMeter(reading(available=800, occupied=150, own=10))
    split = meter.split(reading(available=700, occupied=250, own=110), Named(weights=100, caches=50))
    assert split_total(split) == 300 + 50


def test_memory_that_others_return_is_measured_too():
    meter = SplitMeter(reading(available=800, occupied=150, own=10))
    split = meter.split(reading(available=850, occupied=100, own=10), Named())
    assert split.outside == 150
    assert split_total(split) == 150


def test_the_split_of_this_process_adds_up():
    """Real memory: the pool's pages are named, as much again is not, and the parts sum to what the box lost. Addresses
    that are only reserved (16 GiB of them) appear nowhere."""
    probe = open_probe()
    baseline = probe.read()
    meter = SplitMeter(baseline)
    pool = KvPool(KvLayout((KvTensor("engine", 0, "k", MIB),)), [16384], margin_rows=0)
    unnamed = mmap.mmap(-1, 160 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        pool.commit(0, 160)
        for page in range(0, len(unnamed), mmap.PAGESIZE):
            unnamed[page] = 1
        now = probe.read()
        split = meter.split(now, Named(kv_committed=pool.stats().committed_bytes))
        assert split.kv_committed == 160 * MIB
        assert abs(split_total(split) - now.used) <= SPLIT_TOLERANCE
        assert now.own - baseline.own >= 310 * MIB
        gained_by_others = (now.occupied - now.own) - (baseline.occupied - baseline.own)
        assert split.outside - baseline.used - gained_by_others >= 150 * MIB
    finally:
        unnamed.close()
        pool.close()


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (4096, "4 KiB"),
        (MIB, "1 MiB"),
        (300 * MIB, "300 MiB"),
        (GIB, "1 GiB"),
        (15268608737, "14.22 GiB"),
        (15 * GIB, "15 GiB"),
        (-GIB // 2, "-512 MiB"),
        (-1, "-1 B"),
    ],
)
def test_sizes_in_words(count, words):
    assert size(count) == words
