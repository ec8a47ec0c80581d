"""The memory probe: how much memory this box has, how much of it can still be had, and how much this process holds.

One interface, `MemoryProbe.read() -> MemoryReading`; the sources differ in where the figures come from:

- `host`: `available` is the kernel's `MemAvailable` (free plus what it can drop without swapping) plus the free pages
  on its per-CPU lists, which `MemAvailable` leaves out: after 400 MiB were given back, 360 MiB of them stood there for
  some ten seconds, in which a ladder that believed `MemAvailable` would give back everything else too.
- `cgroup`: a control group (v1 or v2) of this process, or one above it, is limited below the host's memory. `total`
  is the limit, `available` the limit less the group's usage, its inactive file pages not counted as usage (the kernel
  drops those first), and never more than the host has available.
- `unified` and `gpu` belong to device backends, which bring their own probes behind the same interface.

A reading costs 0.1 to 0.3 ms on Linux and is not cached here: the caller decides how fresh it must be. Where there
is no `/proc` (macOS), psutil gives the same figures, more coarsely.

The files are opened once and kept open, so that a process without a free descriptor still measures its memory. What
serves reads through `SteadyProbe`: a reading that fails is replaced by the last one, which then says its age.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Protocol

log = logging.getLogger("tandem.memory")

HOST = "host"
CGROUP = "cgroup"
GPU = "gpu"


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One reading, in bytes.

    `available` can be taken without pushing anything out to disk. `occupied` is what the kernel's own books name as
    in use and not droppable (anonymous and shared pages, kernel structures): counted from below, independent of
    `available`. `own` is this process's anonymous and shared memory, part of `occupied`; mapped files
    are in neither.
    """

    source: str
    total: int
    available: int
    occupied: int
    own: int
    age_s: float = 0.0
    """0 for a reading made now; else how long ago the memory could last be read."""

    @property
    def used(self) -> int:
        """Bytes that cannot be had: total - available."""
        return self.total - self.available


class MemoryProbe(Protocol):
    """Reads the memory that holds the KV."""

    def read(self) -> MemoryReading: ...


@dataclass(slots=True)
class FixedProbe:
    """A probe that says what it was told: figures from elsewhere, or a scripted box."""

    reading: MemoryReading

    def read(self) -> MemoryReading:
        return self.reading


class SteadyProbe:
    """Reads through another probe; where that fails after it worked, returns its last reading with its age."""

    def __init__(self, probe: MemoryProbe, clock: Callable[[], float] = monotonic) -> None:
        self._probe = probe
        self._clock = clock
        self._last: MemoryReading | None = None
        self._read_at = 0.0
        self._failing = False

    def read(self) -> MemoryReading:
        """Raises what the probe raises while it has never worked."""
        try:
            reading = self._probe.read()
        except (OSError, ValueError, RuntimeError) as error:
            if self._last is None:
                raise
            if not self._failing:
                log.warning("the memory cannot be read (%s); its last figures hold until it can", error)
            self._failing = True
            # Never 0, which means a reading made now.
            return replace(self._last, age_s=max(self._clock() - self._read_at, 1e-3))
        if self._failing:
            log.info("the memory can be read again")
        self._failing = False
        self._last, self._read_at = reading, self._clock()
        return reading


def open_probe(root: Path = Path("/")) -> MemoryProbe:
    """The probe for the memory that this process lives in. `root` is where `/proc` and `/sys` lie."""
    if not (root / "proc/meminfo").exists():
        return PsutilProbe()
    host = HostProbe(root)
    group = _limiting_group(root, host.read().total)
    return host if group is None else CgroupProbe(host, group)


_HOST_OCCUPIED = (b"AnonPages", b"Shmem", b"SUnreclaim", b"KernelStack", b"PageTables", b"Percpu", b"Hugetlb")
_MEMINFO = re.compile(rb"^(MemTotal|MemAvailable|" + b"|".join(_HOST_OCCUPIED) + rb"):\s+(\d+)", re.MULTILINE)


_OWN = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+)", re.MULTILINE)
"""This process's anonymous and shared memory; its mapped files are not among them, since the kernel can drop those."""

_PER_CPU_FREE = re.compile(rb"^ +count: +(\d+)", re.MULTILINE)
"""Pages on one CPU's free list of one zone, in `/proc/zoneinfo`."""


class HostProbe:
    """The whole host, from `/proc/meminfo` and `/proc/zoneinfo`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo = KeptFile(root / "proc/meminfo")
        self._zoneinfo = KeptFile(root / "proc/zoneinfo")
        self._status = KeptFile(root / "proc/self/status")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> MemoryReading:
        """Raises OSError where `/proc` cannot be read, ValueError where it has no MemAvailable (Linux < 3.14)."""
        fields = dict(_MEMINFO.findall(self._meminfo.read()))
        if b"MemAvailable" not in fields:
            raise ValueError(f"{self._meminfo.path} has no MemAvailable")
        own = sum(map(int, _OWN.findall(self._status.read()))) * 1024
        total = int(fields[b"MemTotal"]) * 1024
        return MemoryReading(
            source=HOST,
            total=total,
            available=min(total, int(fields[b"MemAvailable"]) * 1024 + self._per_cpu_free()),
            occupied=sum(int(fields.get(name, 0)) for name in _HOST_OCCUPIED) * 1024,
            own=own,
        )

    def _per_cpu_free(self) -> int:
        """Bytes of free pages on the per-CPU lists; 0 where they may not be read."""
        try:
            return sum(map(int, _PER_CPU_FREE.findall(self._zoneinfo.read()))) * self._page
        except OSError:
            return 0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A limited control group: the folder that holds its files, and which version's names they have."""

    folder: Path
    version: int

    @property
    def limit_file(self) -> Path:
        return self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")

    @property
    def usage_file(self) -> Path:
        return self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes")

    def limit(self) -> int | None:
        """The limit in bytes; None where there is none or it cannot be read."""
        try:
            word = self.limit_file.read_text().strip()
        except OSError:
            return None
        return int(word) if word.isdigit() else None


class CgroupProbe:
    """A control group limited below the host's memory."""

    def __init__(self, host: HostProbe, group: ControlGroup) -> None:
        self._host = host
        self._limit = KeptFile(group.limit_file)
        self._usage = KeptFile(group.usage_file)
        self._stat = KeptFile(group.folder / "memory.stat")
        self._kernel = KeptFile(group.folder / "memory.kmem.usage_in_bytes") if group.version == 1 else None

    def read(self) -> MemoryReading:
        """The limit is read anew each time: it may be changed while the process runs."""
        host = self._host.read()
        limit = self._limit.read().strip()
        total = min(int(limit), host.total) if limit.isdigit() else host.total
        usage = int(self._usage.read())
        stat = {name: int(value) for name, value in (line.split() for line in self._stat.read().splitlines())}

        # v1 keeps the figures of the group alone and, as `total_*`, those of the group with all below it.
        def pages(name: bytes) -> int:
            return stat.get(b"total_" + name, stat.get(name, 0))

        if self._kernel is None:
            kernel = stat.get(b"kernel", 0) - stat.get(b"slab_reclaimable", 0)
        else:
            kernel = int(self._kernel.read())
        kept = (b"active_anon", b"inactive_anon", b"active_file", b"unevictable")
        return MemoryReading(
            source=CGROUP,
            total=total,
            available=max(0, min(host.available, total - (usage - pages(b"inactive_file")))),
            occupied=sum(pages(name) for name in kept) + kernel,
            own=host.own,
        )


class PsutilProbe:
    """Any platform that psutil knows; `occupied` and `own` are coarser than Linux's."""

    def read(self) -> MemoryReading:
        import psutil

        memory = psutil.virtual_memory()
        return MemoryReading(
            source=HOST,
            total=int(memory.total),
            available=int(memory.available),
            occupied=int(memory.total - memory.available),
            own=int(psutil.Process().memory_info().rss),
        )


def _limiting_group(root: Path, host_total: int) -> ControlGroup | None:
    """The tightest limited group among this process's own and those above it; None where none is below the host."""
    if sys.platform != "linux":
        return None
    found = [(limit, group) for group in _groups(root) if (limit := group.limit()) is not None and limit < host_total]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _groups(root: Path) -> list[ControlGroup]:
    """This process's memory groups from its own up to the mount, v1 or v2.

    In a container the path in `/proc/self/cgroup` may be the host's and not exist here: then the mount itself is the
    process's group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups: list[ControlGroup] = []
    mounts: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, mounts = 2, ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        elif "memory" in controllers.split(","):
            version, mounts = 1, ("sys/fs/cgroup/memory",)
        else:
            continue
        for mount in mounts:
            top = root / mount
            own = top / path.lstrip("/")
            chain = [own, *own.parents] if own.is_dir() and ".." not in path else [top]
            groups += [ControlGroup(folder, version) for folder in chain if folder.is_relative_to(top)]
    return groups


class KeptFile:
    """A small file of the kernel's, opened at the first read and read from its beginning each time.

    `/proc/self` is resolved when the file is opened: a forked child would go on reading its parent's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._fd: int | None = None
        self._close: weakref.finalize[..., KeptFile] | None = None

    def read(self) -> bytes:
        """Raises OSError. A kept descriptor that fails (its control group is gone) is opened again once."""
        with self._lock:
            if self._fd is not None:
                try:
                    return _read_from_start(self._fd)
                except OSError:
                    self._let_go()
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._close = weakref.finalize(self, os.close, self._fd)
            return _read_from_start(self._fd)

    def _let_go(self) -> None:
        if self._close is not None:
            self._close()
        self._fd = self._close = None


def _read_from_start(fd: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(fd, 1 << 16, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
