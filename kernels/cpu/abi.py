"""The structures that the compiled kernels read, as ctypes mirrors of `src/program.cpp`."""

from __future__ import annotations

import ctypes as c

from kernels.quant_types import QuantType

QUANT_CODES: dict[QuantType, int] = {
    QuantType.F32: 0,
    QuantType.F16: 1,
    QuantType.BF16: 2,
    QuantType.Q4_0: 3,
    QuantType.Q4_1: 4,
    QuantType.Q8_0: 5,
    QuantType.Q4_K: 6,
    QuantType.Q5_K: 7,
    QuantType.Q6_K: 8,
}

OP_NAMES = ("embed", "project", "rotate_store", "attend", "add_linear", "project_gated", "head", "angles")
OP_CODES = {name: code for code, name in enumerate(OP_NAMES)}

MAX_HEAD_DIM = 256
QUANTISED_BLOCK_BYTES = 48


class Matrix(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("bias", c.c_void_p),
        ("form", c.c_int32),
        ("n", c.c_int32),
        ("k", c.c_int32),
        ("reserved", c.c_int32),
    )


class Op(c.Structure):
    _fields_ = (
        ("kind", c.c_int32),
        ("matrices", c.c_int32),
        ("m", Matrix * 3),
        ("input", c.c_void_p),
        ("out", c.c_void_p),
        ("in_stride", c.c_int64),
        ("out_stride", c.c_int64),
        ("norm", c.c_void_p),
        ("q_norm", c.c_void_p),
        ("k_norm", c.c_void_p),
        ("frequencies", c.c_void_p),
        ("magnitude", c.c_double),
        ("eps", c.c_float),
        ("q_scale", c.c_float),
        ("heads", c.c_int32),
        ("kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
        ("pairs", c.c_int32),
        ("interleaved", c.c_int32),
        ("k_tensor", c.c_int32),
        ("v_tensor", c.c_int32),
        ("reserved", c.c_int32),
    )


class Batch(c.Structure):
    _fields_ = (
        ("n", c.c_int32),
        ("logits", c.c_int32),
        ("slot", c.c_void_p),
        ("token", c.c_void_p),
        ("position", c.c_void_p),
        ("kv_row", c.c_void_p),
        ("prefix", c.c_void_p),
        ("ancestor_start", c.c_void_p),
        ("ancestors", c.c_void_p),
        ("logit_rows", c.c_void_p),
        ("kv_base", c.c_void_p),
        ("logits_out", c.c_void_p),
        ("op_seconds", c.c_void_p),
        ("tensors", c.c_int32),
        ("reserved", c.c_int32),
    )


class Workspace(c.Structure):
    _fields_ = (
        ("x", c.c_void_p),
        ("q", c.c_void_p),
        ("partial", c.c_void_p),
        ("partial_floats", c.c_int64),
    )


def load(path: str) -> c.CDLL:
    """Load a compiled library and declare its functions. Raises OSError, or RuntimeError where its structures differ
    from these."""
    lib = c.CDLL(path)
    lib.tandem_sizes.argtypes = [c.POINTER(c.c_int32)]
    lib.tandem_sizes.restype = None
    lib.tandem_instructions.argtypes = []
    lib.tandem_instructions.restype = c.c_char_p
    lib.tandem_pool_new.argtypes = [c.c_int32]
    lib.tandem_pool_new.restype = c.c_void_p
    lib.tandem_pool_free.argtypes = [c.c_void_p]
    lib.tandem_pool_free.restype = None
    lib.tandem_matrix_bytes.argtypes = [c.c_int32, c.c_int64, c.c_int64]
    lib.tandem_matrix_bytes.restype = c.c_int64
    lib.tandem_pack.argtypes = [c.c_void_p, c.c_int32, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, c.c_void_p]
    lib.tandem_pack.restype = None
    lib.tandem_run.argtypes = [c.c_void_p, c.c_void_p, c.c_int32, c.POINTER(Batch), c.POINTER(Workspace)]
    lib.tandem_run.restype = c.c_int32
    sizes = (c.c_int32 * 4)()
    lib.tandem_sizes(sizes)
    mirrors = [c.sizeof(Matrix), c.sizeof(Op), c.sizeof(Batch), c.sizeof(Workspace)]
    if list(sizes) != mirrors:
        raise RuntimeError(f"structure sizes differ: compiled {list(sizes)}, here {mirrors}")
    return lib
