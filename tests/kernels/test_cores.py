"""How many threads compute: the cores, and the CPU quotas of control groups, the smallest of which holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels.cpu import cores
from kernels.cpu.cores import Cores, read_cores
from kernels.cpu.threads import available

V1 = "sys/fs/cgroup/cpu"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


def box(root: Path, groups: str, **quotas: str) -> Path:
    """A root whose `/proc/self/cgroup` is `groups`; files by path, a dot before the file's name."""
    files = {"proc/self/cgroup": groups} | quotas
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": str(quota), f"{folder}/cpu.cfs_period_us": str(period)}


@pytest.mark.parametrize(
    ("groups", "files", "quota", "usable"),
    [
        ("0::/a/b", {}, None, 2),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None, 2),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "100000 100000"}, 1.0, 1),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5, 1),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "20000 100000"}, 0.2, 1),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "400000 100000"}, 4.0, 2),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "400000 100000", "sys/fs/cgroup/a/cpu.max": "50000 50000"}, 1.0, 1),
        ("0::/host/name", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0, 1),
        ("0::/../../else", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0, 1),
        ("0::/", {"sys/fs/cgroup/cpu.max": "nonsense"}, None, 2),
        ("0::/", {"sys/fs/cgroup/cpu.max": "0 0"}, None, 2),
        ("4:memory:/x\n1:cpu,cpuacct:/x\n0::/", v1("sys/fs/cgroup/cpu,cpuacct/x", 100_000), 1.0, 1),
        ("1:cpu:/x/y\n0::/", v1(f"{V1}/x/y", -1) | v1(f"{V1}/x", 50_000, 50_000), 1.0, 1),
        ("1:cpu:/x\n0::/", v1(f"{V1}/x", 300_000) | {"sys/fs/cgroup/unified/cpu.max": "100000 100000"}, 1.0, 1),
        ("2:cpuacct:/x", v1(f"{V1}/x", 100_000), None, 2),
    ],
)
def test_the_smallest_quota_holds(
    groups: str, files: dict[str, str], quota: float | None, usable: int, tmp_path: Path
) -> None:
    found = read_cores(box(tmp_path, groups, **files))
    assert (found.allowed, found.quota, found.usable) == (2, quota, usable)


def test_the_reason_names_the_quota_and_its_group(tmp_path: Path) -> None:
    found = read_cores(box(tmp_path, "0::/a", **{"sys/fs/cgroup/a/cpu.max": "100000 100000"}))
    assert found.reason == f"a CPU quota of 1 on 2 cores ({tmp_path / 'sys/fs/cgroup/a'})"
    assert Cores(2).reason is None
    assert Cores(2, 3.0, tmp_path).reason is None


def test_threads_follow_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_groups", lambda root: [(root, 2)])
    monkeypatch.setattr(cores, "_quota", lambda group, version: 1.0)
    assert available() == 1


def test_without_control_groups_the_cores_count(tmp_path: Path) -> None:
    assert read_cores(tmp_path) == Cores(2)
