"""Host ranges: reserved is not committed, given back reads as zero, the kernel's count agrees."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from engine.memory.kv import host_vm
from engine.memory.kv.host_vm import PAGE_BYTES, SYSTEM_PAGE_BYTES, HostRange, resident_bytes

GIB = 1 << 30


def held(area: HostRange) -> int:
    return resident_bytes([(area.address, area.length)])[0]


@pytest.fixture
def area():
    area = HostRange(64 * PAGE_BYTES)
    yield area
    area.close()


def test_a_window_far_over_the_box_reserves_and_takes_only_what_is_committed():
    area = HostRange(64 * GIB)
    try:
        assert held(area) == 0
        area.commit(0, PAGE_BYTES)
        area.commit(63 * GIB, PAGE_BYTES)
        assert held(area) == 2 * PAGE_BYTES
        ctypes.memset(area.address + 63 * GIB, 7, PAGE_BYTES)
        assert ctypes.string_at(area.address + 63 * GIB, 4) == b"\x07" * 4
    finally:
        area.close()


def test_given_back_pages_leave_memory_and_read_as_zero(area):
    area.commit(0, 4 * PAGE_BYTES)
    ctypes.memset(area.address, 255, 4 * PAGE_BYTES)
    area.give_back(PAGE_BYTES, 2 * PAGE_BYTES)
    assert held(area) == 2 * PAGE_BYTES
    assert ctypes.string_at(area.address, 4 * PAGE_BYTES) == (
        b"\xff" * PAGE_BYTES + bytes(2 * PAGE_BYTES) + b"\xff" * PAGE_BYTES
    )
    area.commit(PAGE_BYTES, 2 * PAGE_BYTES)
    assert ctypes.string_at(area.address + PAGE_BYTES, 2 * PAGE_BYTES) == bytes(2 * PAGE_BYTES)
    assert held(area) == 4 * PAGE_BYTES


def test_committing_backed_pages_again_keeps_their_contents(area):
    area.commit(0, PAGE_BYTES)
    ctypes.memset(area.address, 42, PAGE_BYTES)
    area.commit(0, 2 * PAGE_BYTES)
    assert ctypes.string_at(area.address, PAGE_BYTES) == b"*" * PAGE_BYTES


def test_a_kernel_without_populate_commits_by_touching(area, monkeypatch):
    monkeypatch.setattr(host_vm, "_populates", lambda: False)
    area.commit(0, PAGE_BYTES)
    ctypes.memset(area.address, 42, PAGE_BYTES)
    area.commit(0, 3 * PAGE_BYTES)
    assert held(area) == 3 * PAGE_BYTES
    assert ctypes.string_at(area.address, PAGE_BYTES) == b"*" * PAGE_BYTES


def test_elsewhere_than_linux_fresh_pages_take_the_place_of_the_old(area, monkeypatch):
    area.commit(0, 2 * PAGE_BYTES)
    ctypes.memset(area.address, 42, 2 * PAGE_BYTES)
    monkeypatch.setattr(host_vm.sys, "platform", "darwin")
    monkeypatch.setattr(host_vm, "_MAP_FIXED", 0x10)
    area.give_back(0, PAGE_BYTES)
    assert ctypes.string_at(area.address, PAGE_BYTES) == bytes(PAGE_BYTES)
    assert ctypes.string_at(area.address + PAGE_BYTES, 4) == b"****"


def test_a_write_past_the_range_faults_instead_of_reaching_a_neighbour():
    code = (
        "import ctypes; from engine.memory.kv.host_vm import HostRange; a = HostRange(65536); b = HostRange(65536);"
        "ctypes.memset({target}, 1, 1); print('written')"
    )
    for target in ("a.address + a.length", "a.address - 1"):
        run = subprocess.run([sys.executable, "-c", code.format(target=target)], capture_output=True, check=False)
        assert run.returncode < 0, run
        assert b"written" not in run.stdout


def test_lengths_round_up_to_the_system_page_and_closing_twice_is_harmless():
    area = HostRange(SYSTEM_PAGE_BYTES + 1)
    assert area.length == 2 * SYSTEM_PAGE_BYTES
    area.close()
    area.close()


def test_more_addresses_than_there_are_say_so():
    with pytest.raises(OSError, match="cannot reserve"):
        HostRange(1 << 60)


def test_what_was_pushed_out_to_swap_is_still_held(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        b"1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nRss: 4 kB\nPss: 4 kB\nSwap: 2 kB\nSwapPss: 2 kB\n"
        b"5000-6000 rw-p 00000000 00:00 0\nRss: 4 kB\nSwap: 0 kB\n"
    )
    monkeypatch.setattr(Path, "read_bytes", lambda path: said)
    assert resident_bytes([(0x1000, 0x2000), (0x7000, 0x1000)]) == [6 * 1024, 0]
