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
    """Which kernels are launched as programmatic dependents (compute capability 9.0): they start while the one before
    still runs, and wait for its results once they have nothing else to do.

    `small`: everything but the products, hiding most of their launch. `products`: the products too. A product that waits
    holds shared memory that the running one's last programs need, so this pays only where weights are already on their
    way into registers, as in the packed products.
    """

    small: bool
    products: bool


def default_mode(device: torch.device) -> LaunchMode:
    """What was fastest where measured: small kernels start early, products one after the other."""
    early = not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return LaunchMode(small=early, products=False)


@triton.jit
def join_chain(RELEASE: tl.constexpr, DEPENDENT: tl.constexpr):
    """Let the next kernel start, then wait for the one before.

    Every program of every kernel calls this once, on every path and before it touches memory that a kernel writes; what
    was on the device before the chain began (weights, a pass's tables) may be read earlier. The
    wait is transitive only if nobody skips it. A kernel that is not DEPENDENT starts after the one before has ended.
    """
    if RELEASE:
        gdc_launch_dependents()
    if DEPENDENT:
        gdc_wait()


def require_cuda_or_interpreter(*tensors: torch.Tensor) -> None:
    """Raise ValueError for tensors on a device that cannot run these kernels, or on different ones."""
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors lie on different devices: {sorted(map(str, devices))}")
    device = devices.pop()
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        raise ValueError(f"a Triton kernel was given tensors on {device}; it needs a CUDA device")
