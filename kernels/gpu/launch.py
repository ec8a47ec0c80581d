"""What every Triton launch of this package shares: the interpreter switch, dependent launch and the device guard."""

from __future__ import annotations

from enum import StrEnum

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""True where kernels run in Triton's interpreter on the CPU. It computes bf16 products wrongly, so operands are upcast
on load there."""


class LaunchMode(StrEnum):
    """How a kernel follows the one before it (programmatic dependent launch, compute capability 9.0).

    PLAIN: it starts after the other has ended. CHAINED: it starts once the other is well under way: a small one has its
    input, a product has read its weights.
    """

    PLAIN = "plain"
    CHAINED = "chained"


def _generation(device: torch.device) -> int:
    """The first number of the GPU's compute capability; 0 where there is no GPU."""
    if INTERPRETED or device.type != "cuda":
        return 0
    return torch.cuda.get_device_capability(device)[0]


def has_dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may start before the one before it ends: compute capability 9.0 or newer."""
    return _generation(device) >= 9


def has_tma(device: torch.device) -> bool:
    """Whether TMA tiles (tensor memory accelerator) serve unmeasured: compute capability 9 alone. Newer GPUs have a
    TMA too, but some have less shared memory than such a tile takes."""
    return _generation(device) == 9


def default_mode(device: torch.device) -> LaunchMode:
    """CHAINED where the GPU can: a decode step of the 8-billion shape on an H200 took 4.28 ms for 4.63 PLAIN in bf16,
    1.77 for 1.96 in 4-bit."""
    return LaunchMode.CHAINED if has_dependent_launch(device) else LaunchMode.PLAIN


@triton.jit
def pdl_join(MODE: tl.constexpr):
    """A small kernel's place in the chain: wait for the kernel before, let the next one start.

    Every program of every kernel calls this once, on every path and before it touches memory that a kernel writes; what
    was on the device before the chain began (weights, a batch's tables) may be read earlier. The wait is
    transitive only if nobody skips it.
    """
    if MODE == "chained":
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def pdl_wait(MODE: tl.constexpr):
    """A product's `pdl_join`, before its weights; `pdl_trigger` follows after them."""
    if MODE == "chained":
        gdc_wait()


_LINE = tl.constexpr(64)


@triton.jit
def prefetch_weights_l2(w_ptr, which, k, AHEAD: tl.constexpr):
    """Ask that the first AHEAD 16-bit weights of the rows `which` of a (rows, k) matrix come to L2, and do not wait
    for them: memory is idle before `pdl_wait` returns. AHEAD is 0, or a power of two from 64 on."""
    if AHEAD > 0:
        line = tl.minimum(tl.arange(0, AHEAD // _LINE) * _LINE, k - _LINE)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [w_ptr + which[:, None].to(tl.int64) * k + line],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def pdl_trigger(MODE: tl.constexpr):
    """Let the next kernel start while the last sums are finished."""
    if MODE == "chained":
        gdc_launch_dependents()


def require_cuda_or_interpreter(*tensors: torch.Tensor) -> None:
    """Raise ValueError for tensors on a device that cannot run these kernels, or on different ones."""
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors lie on different devices: {sorted(map(str, devices))}")
    device = devices.pop()
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        raise ValueError(f"a Triton kernel was given tensors on {device}; it needs a CUDA device")
