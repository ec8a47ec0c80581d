"""What every Triton launch of this package shares: the interpreter switch, dependent launch and the device guard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""True where kernels run in Triton's interpreter on the CPU. It computes bf16 products wrongly, so operands are upcast
on load there."""


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """How kernels are launched. `dependent`: programmatic dependent launch, where a kernel starts while the one before
    it still runs, brings its weights into L2, and only then waits for the other's results (compute capability 9.0)."""

    dependent: bool


def default_mode(device: torch.device) -> LaunchMode:
    """Kernels one after the other: in captured graphs that was faster on every shape measured than dependent launch."""
    return LaunchMode(dependent=False)


@triton.jit
def join_chain(DEPENDENT: tl.constexpr):
    """Let the next kernel start, then wait for the one before.

    Every program of every kernel calls this once, on every path and before it touches memory that a kernel writes: the
    wait is transitive only if nobody skips it.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch_l2(ptr, start, limit, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Ask for `BYTES` of a 2-byte tensor from element `start` on to be brought into L2, one bulk request a thread.
    The range is moved back where it would pass `limit` elements."""
    chunk: tl.constexpr = BYTES // THREADS
    first = tl.minimum(start, limit - BYTES // 2)
    pointers = ptr + first + tl.arange(0, THREADS) * (chunk // 2)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [pointers, tl.full([THREADS], chunk, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def require_cuda_or_interpreter(*tensors: torch.Tensor) -> None:
    """Raise ValueError for tensors on a device that cannot run these kernels, or on different ones."""
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors lie on different devices: {sorted(map(str, devices))}")
    device = devices.pop()
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        raise ValueError(f"a Triton kernel was given tensors on {device}; it needs a CUDA device")
