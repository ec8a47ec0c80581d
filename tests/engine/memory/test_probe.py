"""The probe against written `/proc` and `/sys` trees of each kind, and against this machine."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from engine.memory.probe import CgroupProbe, FixedProbe, HostProbe, MemoryReading, PsutilProbe, SteadyProbe, open_probe
from engine.memory.sizes import GIB, MIB
from tests.support.memory import ScriptedProbe

MEMINFO = """MemTotal:       16777216 kB
MemFree:         2097152 kB
MemAvailable:    8388608 kB
AnonPages:       4194304 kB
Shmem:           1048576 kB
SUnreclaim:       524288 kB
KernelStack:       16384 kB
PageTables:        32768 kB
Percpu:             4096 kB
HugePages_Total:       0
Hugetlb:               0 kB
"""

V2_STAT = f"""anon {600 * MIB}
file {900 * MIB}
kernel {40 * MIB}
inactive_anon {580 * MIB}
active_anon {20 * MIB}
inactive_file {700 * MIB}
active_file {200 * MIB}
unevictable 0
slab_reclaimable {10 * MIB}
"""

V1_STAT = f"""inactive_anon 1
total_inactive_anon {580 * MIB}
total_active_anon {20 * MIB}
total_inactive_file {700 * MIB}
total_active_file {200 * MIB}
total_unevictable 0
"""


@pytest.fixture
def box(tmp_path: Path):
    def write(files: dict[str, str]) -> Path:
        status = (
            f"VmRSS:\t  102400 kB\nRssAnon:\t   {60 * 1024} kB\nRssFile:\t   30720 kB\nRssShmem:\t   {10 * 1024} kB\n"
        )
        defaults = {"proc/meminfo": MEMINFO, "proc/self/status": status}
        for name, text in {**defaults, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


ZONEINFO = """Node 0, zone      DMA
  pages free     2814
  pagesets
    cpu: 0
              count:    5
              high:     0
    cpu: 1
              count:    7
              high:     9
Node 0, zone   Normal
      nr_zone_active_anon 11
  pagesets
    cpu: 0
              count:    1000
"""


def v2(limit: str, usage: int, where: str = "") -> dict[str, str]:
    folder = f"sys/fs/cgroup/{where}".rstrip("/")
    return {
        "proc/self/cgroup": f"0::/{where}\n",
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": V2_STAT,
    }


def test_a_plain_host_says_what_the_kernel_says(box):
    reading = open_probe(box({})).read()
    assert reading.source == "host"
    assert (reading.total, reading.available, reading.used) == (16 * GIB, 8 * GIB, 8 * GIB)
    assert reading.occupied == (4194304 + 1048576 + 524288 + 16384 + 32768 + 4096) * 1024
    assert reading.own == 70 * MIB


def test_free_pages_on_the_per_cpu_lists_are_available_too(box):
    page = os.sysconf("SC_PAGE_SIZE")
    assert open_probe(box({"proc/zoneinfo": ZONEINFO})).read().available == 8 * GIB + 1012 * page


def test_what_was_given_back_is_available_at_once_on_this_machine():
    """`available` and `occupied` move against each other, whatever else runs: their sum stays."""
    probe = open_probe()
    with mmap.mmap(-1, 256 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        full = probe.read()
    after = probe.read()
    assert after.own <= full.own - 250 * MIB
    assert abs((after.available + after.occupied) - (full.available + full.occupied)) < 96 * MIB


@pytest.mark.parametrize("limit", ["max", str(64 * GIB)])
def test_a_group_without_a_limit_below_the_host_changes_nothing(box, limit):
    assert isinstance(open_probe(box(v2(limit, GIB))), HostProbe)


def test_a_v2_limit_is_the_total_and_inactive_file_pages_are_not_usage(box):
    reading = open_probe(box(v2(str(4 * GIB), 2 * GIB))).read()
    assert reading.source == "cgroup"
    assert reading.total == 4 * GIB
    assert reading.available == 4 * GIB - (2 * GIB - 700 * MIB)
    assert reading.occupied == (580 + 20 + 200 + 30) * MIB
    assert reading.own == 70 * MIB


def test_a_group_never_has_more_available_than_its_host(box):
    reading = open_probe(box(v2(str(15 * GIB), GIB))).read()
    assert reading.available == 8 * GIB


def test_usage_over_the_limit_leaves_nothing_rather_than_less(box):
    assert open_probe(box(v2(str(GIB), 3 * GIB))).read().available == 0


def test_the_tightest_group_on_the_way_up_counts(box):
    files = v2(str(6 * GIB), GIB, "system/tandem")
    files["sys/fs/cgroup/system/memory.max"] = f"{3 * GIB}\n"
    files["sys/fs/cgroup/system/memory.current"] = f"{GIB}\n"
    files["sys/fs/cgroup/system/memory.stat"] = V2_STAT
    assert open_probe(box(files)).read().total == 3 * GIB


def test_a_limit_changed_while_running_is_seen(box):
    root = box(v2(str(6 * GIB), GIB))
    probe = open_probe(root)
    (root / "sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    assert probe.read().total == 2 * GIB
    (root / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert probe.read().total == 16 * GIB


@pytest.mark.parametrize("path", ["/docker/0123", "/../../elsewhere"])
def test_a_container_that_does_not_see_its_own_path_reads_the_mount(box, path):
    root = box(
        {
            "proc/self/cgroup": f"9:name=systemd:/\n4:cpu,memory:{path}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": V1_STAT,
            "sys/fs/cgroup/memory/memory.kmem.usage_in_bytes": f"{30 * MIB}\n",
        }
    )
    probe = open_probe(root)
    assert isinstance(probe, CgroupProbe)
    reading = probe.read()
    assert reading.available == 4 * GIB - (2 * GIB - 700 * MIB)
    assert reading.occupied == (580 + 20 + 200 + 30) * MIB


def test_a_v1_group_without_a_limit_is_the_host(box):
    root = box(
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert isinstance(open_probe(root), HostProbe)


def test_without_proc_psutil_answers(tmp_path):
    probe = open_probe(tmp_path)
    assert isinstance(probe, PsutilProbe)
    reading = probe.read()
    assert 0 < reading.available < reading.total
    assert reading.own > 0


def test_a_kernel_without_memavailable_is_named(box):
    root = box({"proc/meminfo": "MemTotal: 5 kB\n"})
    with pytest.raises(ValueError, match="MemAvailable"):
        HostProbe(root).read()


@pytest.mark.parametrize("sharing", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_this_machine_counts_what_this_process_takes(sharing):
    probe = open_probe()
    before = probe.read()
    with mmap.mmap(-1, 64 * MIB, flags=sharing | mmap.MAP_ANONYMOUS) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        grown = probe.read().own - before.own
    assert 60 * MIB <= grown <= 80 * MIB
    assert 0 < before.available < before.total


def test_a_fixed_probe_says_what_it_was_told():
    reading = MemoryReading("unified", 10, 4, 6, 1)
    assert FixedProbe(reading).read() == reading
    assert reading.used == 6


def test_memory_is_measured_without_a_free_descriptor(box, monkeypatch):
    root = box({**v2(str(4 * GIB), 2 * GIB), "proc/zoneinfo": ZONEINFO})
    probe = open_probe(root)
    before = probe.read()

    def no_descriptor(*args: object, **named: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_descriptor)
    (root / "sys/fs/cgroup/memory.current").write_text(f"{GIB}\n")
    assert probe.read().available == before.available + GIB


def test_a_probe_that_fails_keeps_its_last_reading_and_says_how_old_it_is(caplog):
    class Failing(ScriptedProbe):
        broken = False

        def read(self) -> MemoryReading:
            if self.broken:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().read()

    inner, now = Failing(available=5 * GIB), [100.0]
    probe = SteadyProbe(inner, lambda: now[0])
    inner.broken = True
    with pytest.raises(OSError, match="Too many"):
        probe.read()
    inner.broken = False
    assert probe.read().age_s == 0
    inner.broken, now[0] = True, 107.5
    assert [(probe.read().available, probe.read().age_s) for _ in range(2)] == [(5 * GIB, 7.5)] * 2
    inner.broken, inner.available = False, 3 * GIB
    assert (probe.read().available, probe.read().age_s) == (3 * GIB, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
