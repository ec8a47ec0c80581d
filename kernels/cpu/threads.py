"""Bounded spinning for OpenMP, to be imported before torch.

With the default, an idle OpenMP thread spins for milliseconds; beside another busy process the threads of a pool then
spin past each other and each matrix product takes as long. A few thousand turns cost nothing on a quiet box.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "4000")


def available() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
