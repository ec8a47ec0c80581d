"""KV rows at an address, as an array."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from kernels.program import Heads


def kv_rows(base: int, rows: int, heads: Heads) -> NDArray[np.float16]:
    """The first `rows` KV rows at address `base`, shape (rows, kv_heads, head_dim), writable in place. The caller
    answers for the memory."""
    raw = (ctypes.c_uint16 * (rows * heads.kv_width)).from_address(base)
    return np.ctypeslib.as_array(raw).view(np.float16).reshape(rows, heads.kv_heads, heads.head_dim)
