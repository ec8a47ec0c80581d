"""Freed memory that the C library kept goes back to the system."""

from __future__ import annotations

import ctypes
import platform

import pytest

from engine.memory.probe import open_probe
from engine.memory.trim import return_free_memory

BLOCK = 900
BLOCKS = 100_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a call for it")
def test_what_lies_under_a_block_in_use_comes_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    blocks = [libc.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    probe = open_probe()
    full = probe.read().own
    for block in blocks[:-1]:
        libc.free(block)
    return_free_memory()
    freed = full - probe.read().own
    libc.free(blocks[-1])
    assert freed > BLOCK * BLOCKS // 2


def test_a_c_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.trim._malloc_trim", lambda: None)
    return_free_memory()
