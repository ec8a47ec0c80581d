"""Links torch's library into the process, so that no other thread waits while it is read and bound.

`import torch` does this while it holds the interpreter: half a second on a warm box, many on one that reads the file
from a slow disk, in which `/health` would not answer. A foreign function call gives the interpreter up, so `dlopen` is
called as one; the import that follows finds the library in place.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from kernels.cpu import threads as threads  # sets what OpenMP reads when torch's library brings it


def link_torch() -> None:
    """Before the first `import torch`, which says what is wrong where this does not succeed."""
    if "torch" in sys.modules:
        return
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "lib"
    # As torch itself begins, so that all its libraries see the same ones.
    if link(folder / "libtorch_global_deps.so", os.RTLD_LAZY | os.RTLD_GLOBAL):
        link(folder / "libtorch_cpu.so", os.RTLD_LAZY)


def link(path: Path, mode: int) -> bool:
    """Whether the library at `ancestors` is in the process; `mode` is dlopen(3)'s."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype = ctypes.c_void_p
    dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return dlopen(os.fsencode(path), mode) is not None
