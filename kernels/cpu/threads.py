"""Bounded spinning for OpenMP, to be imported before torch.

With the default, an idle OpenMP thread spins for milliseconds; beside another busy process the threads of a pool then
spin past each other and each matrix product takes as long. A few thousand turns cost nothing on a quiet box.
"""

from __future__ import annotations

import os

from kernels.cpu.cores import read_cores

os.environ.setdefault("GOMP_SPINCOUNT", "4000")


def available() -> int:
    """The threads that this process may compute with at once: its cores, fewer under a CPU quota."""
    return read_cores().usable
