"""Host address ranges whose pages are taken and given back one by one: the KV pool's backing on a CPU.

A range is reserved with an anonymous private mapping that counts against nothing (`MAP_NORESERVE`), between two
inaccessible guard pages, so that the kernel merges it with no neighbour and a stray access faults. Pages are committed
with `MADV_POPULATE_WRITE` (Linux 5.14; before it, and elsewhere, by a write to each page) and given back with
`MADV_DONTNEED`, after which they read as zero. Transparent huge pages are off for the range: with them one small
commit would take 2 MiB.

Portability: outside Linux a give-back maps fresh pages over the old ones, since `MADV_DONTNEED` does not promise zeros
there. Windows has no such calls; the pool refuses to start on it and names the setting that turns it off.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PAGE_BYTES = 64 << 10
"""The pool's page on a host. Larger pages mean fewer calls, smaller ones less memory per slot and tensor wasted: at
64 KiB a small model's accounting still means something."""

SYSTEM_PAGE_BYTES = mmap.PAGESIZE
"""The system's own page; the pool's is a multiple of it."""

BACKEND = "host-mmap"

_MADV_DONTNEED = 4
_MADV_NOHUGEPAGE = 15
_MADV_POPULATE_WRITE = 23
# Python 3.11 has no name for it.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_MAP_FIXED = 0x10
_PROT_NONE = 0
_SMAPS = re.compile(rb"^(?:([0-9a-f]+)-([0-9a-f]+) |(?:Rss|Swap): +([0-9]+) )", re.MULTILINE)
"""A mapping's first line, or what of it is resident or swapped in KiB."""


class HostRange:
    """One reserved range of `length` bytes from `address`, both multiples of the system's page.

    Raises OSError where the address space cannot be had. `close` returns it; nothing may point into it then.
    """

    def __init__(self, length: int) -> None:
        self._guard = mmap.PAGESIZE
        self.length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        self._whole = self.length + 2 * self._guard
        self._start: int | None = _map(None, self._whole, fixed=False)
        self.address = self._start + self._guard
        libc = _libc()
        for guard in (self._start, self.address + self.length):
            _check(libc.mprotect(guard, self._guard, _PROT_NONE), "mprotect", self._guard)
        # EINVAL: a kernel without transparent huge pages has none to turn off.
        if sys.platform == "linux" and libc.madvise(self.address, self.length, _MADV_NOHUGEPAGE) != 0:
            code = ctypes.get_errno()
            if code != errno.EINVAL:
                raise OSError(code, f"madvise(NOHUGEPAGE) of {self.length} bytes: {os.strerror(code)}")

    def commit(self, offset: int, length: int) -> None:
        """Back `length` bytes from `offset` with zeroed pages; pages that are backed already keep their contents.

        Raises MemoryError where the system has no memory for them; nothing newly backed is then kept by the caller's
        books, and `give_back` of the same span undoes it.
        """
        if _populates() and _libc().madvise(self.address + offset, length, _MADV_POPULATE_WRITE) == 0:
            return
        code = ctypes.get_errno() if _populates() else errno.EINVAL
        if code != errno.EINVAL:
            raise MemoryError(f"no memory for {length} bytes of KV pages: {os.strerror(code)}")
        touch(self.address + offset, length)

    def give_back(self, offset: int, length: int) -> None:
        """Return the pages of the span; it reads as zero afterwards and stays reserved."""
        if sys.platform == "linux":
            _check(_libc().madvise(self.address + offset, length, _MADV_DONTNEED), "madvise(DONTNEED)", length)
        else:
            _map(self.address + offset, length, fixed=True)

    def commit_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Nothing is worth a helper: taking a page is quick here."""

    def check_integrity(self) -> None:
        """The kernel keeps the page map."""

    def close(self) -> None:
        """Return the range. Calling it again does nothing."""
        if self._start is not None:
            _check(_libc().munmap(self._start, self._whole), "munmap", self._whole)
            self._start = None


def touch(address: int, length: int) -> None:
    """Back each page of the span by writing one byte of it back to itself."""
    for page in range(address, address + length, mmap.PAGESIZE):
        byte = ctypes.c_ubyte.from_address(page)
        byte.value = byte.value


def resident_bytes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Bytes of memory behind each of `spans` ((address, length) of a range), as the kernel counts them in
    `/proc/self/smaps`: Rss, and Swap, since what was pushed out is still held. Linux only; walks the process's whole
    page table, so it is for checks, not for rounds."""
    totals = [0] * len(spans)
    inside: int | None = None
    for found in _SMAPS.finditer(Path("/proc/self/smaps").read_bytes()):
        low, high, kib = found.groups()
        if kib is None:
            first, last = int(low, 16), int(high, 16)
            within = (i for i, (address, length) in enumerate(spans) if address <= first and last <= address + length)
            inside = next(within, None)
        elif inside is not None:
            totals[inside] += int(kib) * 1024
    return totals


@cache
def _libc() -> ctypes.CDLL:
    if sys.platform == "win32":
        raise OSError("this system has no mmap with MAP_NORESERVE; start with --kv-pool off")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if hasattr(libc, "madvise"):
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


@cache
def _populates() -> bool:
    """Whether this kernel commits with one call; asked once, on a page of its own."""
    if sys.platform != "linux":
        return False
    page = _map(None, mmap.PAGESIZE, fixed=False)
    try:
        return bool(_libc().madvise(page, mmap.PAGESIZE, _MADV_POPULATE_WRITE) == 0)
    finally:
        _libc().munmap(page, mmap.PAGESIZE)


def _map(address: int | None, length: int, *, fixed: bool) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | (_MAP_FIXED if fixed else 0)
    got = _libc().mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if got is None or got == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot reserve {length} bytes of address space: {os.strerror(code)}")
    return int(got)


def _check(result: int, call: str, length: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call} of {length} bytes: {os.strerror(code)}")
