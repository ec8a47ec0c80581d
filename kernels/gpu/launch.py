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
    it still runs and then waits for the other's results (compute capability 9.0)."""

    dependent: bool


def default_mode(device: torch.device) -> LaunchMode:
    """Dependent launch where the device has it."""
    if INTERPRETED or device.type != "cuda":
        return LaunchMode(dependent=False)
    return LaunchMode(dependent=torch.cuda.get_device_capability(device)[0] >= 9)


@triton.jit
def join_chain(DEPENDENT: tl.constexpr):
    """Let the next kernel start, then wait for the one before.

    Every program of every kernel calls this once, on every path and before it touches memory that a kernel writes: the
    wait is transitive only if nobody skips it.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


def require_cuda_or_interpreter(*tensors: torch.Tensor) -> None:
    """Raise ValueError for tensors on a device that cannot run these kernels, or on different ones."""
    devices = {t.device for t in tensors}
    if len(devices) != 1:
        raise ValueError(f"tensors lie on different devices: {sorted(map(str, devices))}")
    device = devices.pop()
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        raise ValueError(f"a Triton kernel was given tensors on {device}; it needs a CUDA device")
