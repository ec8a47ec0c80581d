"""The CPU backends under test, each by a name for parametrised tests."""

from __future__ import annotations

import pytest

from kernels.cpu import backend
from kernels.cpu.backend import BackendChoice

NAMES = ("native", "portable", "torch")

each_backend = pytest.mark.parametrize("name", NAMES)


def named(name: str) -> BackendChoice:
    """`native`: with this machine's instructions; `portable`: the same kernels in plain C++; `torch`."""
    if name == "native":
        return backend.native()
    if name == "portable":
        return backend.native(("TANDEM_PORTABLE",))
    return backend.torch("asked for by a test")
