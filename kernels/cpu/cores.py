"""How many cores this process may use: its affinity, and the CPU quota of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

V1_MOUNTS: tuple[str, ...] = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpuacct,cpu")
V2_MOUNTS: tuple[str, ...] = ("sys/fs/cgroup", "sys/fs/cgroup/unified")


@dataclass(frozen=True, slots=True)
class Cores:
    """`allowed` cores may be used at once; `quota` is the time of so many that a control group gives (`group` is its
    folder), None where none limits it."""

    allowed: int
    quota: float | None = None
    group: Path | None = None

    @property
    def usable(self) -> int:
        """Threads that can compute all the time. A quota is rounded down: with one thread more, the kernel would stop
        all of them for the rest of each period, in the middle of a round."""
        return self.allowed if self.quota is None else max(1, min(self.allowed, int(self.quota)))

    @property
    def reason(self) -> str | None:
        """Why fewer are usable than allowed, None where all are."""
        if self.quota is None or self.usable == self.allowed:
            return None
        return f"a CPU quota of {self.quota:g} on {self.allowed} cores ({self.group})"


def read_cores(root: Path = Path("/")) -> Cores:
    """The cores as the system gives them now. `root` is where `/proc` and `/sys` lie."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [(quota, group) for group, version in _groups(root) if (quota := _quota(group, version)) is not None]
    return Cores(allowed, *min(found)) if found else Cores(allowed)


def _groups(root: Path) -> Iterator[tuple[Path, int]]:
    """This process's CPU groups and those above them, with their version; a limit of each holds for all below it.

    In a container the path in `/proc/self/cgroup` may be the host's and not exist here: then the mount itself is the
    process's group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, mounts = 2, V2_MOUNTS
        elif "cpu" in controllers.split(","):
            version, mounts = 1, V1_MOUNTS
        else:
            continue
        own = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for mount in mounts:
            for folder in (own, *own.parents):
                yield root / mount / folder, version


def _quota(group: Path, version: int) -> float | None:
    """CPU time over wall time that the group may use; None where there is no limit or it cannot be read."""
    try:
        if version == 2:
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return None
    return int(quota) / int(period)
