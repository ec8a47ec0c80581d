"""What every Triton launch of this package shares: the interpreter switch, dependent launch and the device guard."""

from __future__ import annotations

from dataclasses import dataclass
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

    PLAIN: it starts after the other has ended. EARLY: small kernels start, and wait, as soon as the other's programs
    all run; products are plain. CHAINED: every kernel starts once the other is well under way: a small one has its
    input, a product has read its weights.
    """

    PLAIN = "plain"
    EARLY = "early"
    CHAINED = "chained"


def default_mode(device: torch.device) -> LaunchMode:
    """What serves every row count and form well where measured; a card without dependent launch has PLAIN alone."""
    early = not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return LaunchMode.EARLY if early else LaunchMode.PLAIN


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a program's passes are launched: those of one row, and those of several. The bits are the same."""

    alone: LaunchMode
    joint: LaunchMode

    def mode(self, rows: int) -> LaunchMode:
        """The mode of a pass of `rows` rows."""
        return self.alone if rows == 1 else self.joint


CHAINED_FROM = 1.0
"""Bytes a weight from which on a row alone is launched CHAINED. Share of the read-only kernel's rate in a decode step
of the 8-billion shape on an H200, EARLY and then CHAINED: bf16 0.750 and 0.758, 8-bit 0.649 and 0.683, FP8 0.633 and
0.680, 4-bit 0.525 and 0.517. With several rows EARLY was ahead in each (bf16, four rows: 4.45 against 4.67 ms)."""


def launch_plan(device: torch.device, bytes_per_weight: float) -> LaunchPlan:
    """The plan for a program whose products read `bytes_per_weight`, on average, of each of their weights."""
    joint = default_mode(device)
    chained = joint is not LaunchMode.PLAIN and bytes_per_weight >= CHAINED_FROM
    return LaunchPlan(LaunchMode.CHAINED if chained else joint, joint)


@triton.jit
def join_chain(MODE: tl.constexpr):
    """A small kernel's place in the chain: let the next kernel start, wait for the one before.

    Every program of every kernel calls this once, on every path and before it touches memory that a kernel writes; what
    was on the device before the chain began (weights, a pass's tables) may be read earlier. The wait is transitive only
    if nobody skips it.
    """
    if MODE == "early":
        gdc_launch_dependents()
    if MODE != "plain":
        gdc_wait()
    if MODE == "chained":
        gdc_launch_dependents()


@triton.jit
def enter_product(MODE: tl.constexpr):
    """A product's `join_chain`, before its weights; `leave_product` follows after them."""
    if MODE == "early":
        gdc_launch_dependents()
    if MODE == "chained":
        gdc_wait()


_LINE = tl.constexpr(64)


@triton.jit
def ask_for_weights(w_ptr, which, k, AHEAD: tl.constexpr):
    """Ask that the first AHEAD 16-bit weights of the rows `which` of a (rows, k) matrix come to L2, and do not wait
    for them: memory is idle before `enter_product` returns. AHEAD is 0, or a power of two from 64 on."""
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
def leave_product(MODE: tl.constexpr):
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
