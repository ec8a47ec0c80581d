"""Torch references of the GPU kernels: the same formula in plain torch, slow and clear, for tests."""

from __future__ import annotations

import math

import torch

from kernels.gpu.linear import Epilogue
from kernels.gpu.rotary import HeadShape
from kernels.sampling import FRACTION_BITS, MAX_DEPTH, SamplingSpec, fraction_weights


def linear(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, epilogue: Epilogue, alpha: torch.Tensor | None = None
) -> torch.Tensor:
    """What `linear` leaves in `out`, given what it held before."""
    y = x.float() @ w.float().T
    if alpha is not None:
        y = y * alpha
    if epilogue is Epilogue.GATED:
        gate, up = y.chunk(2, dim=1)
        y = torch.nn.functional.silu(gate) * up
    if epilogue is Epilogue.ADD:
        y = y + out.float()
    return y.to(out.dtype)


def rms_norm(h: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Float32 norm of each row, as bf16."""
    return (h * torch.rsqrt(h.square().mean(1, keepdim=True) + eps) * gain).bfloat16()


def rotary(
    qkv: torch.Tensor,
    position: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    shape: HeadShape,
    interleaved: bool,
    bias: torch.Tensor | None,
    head_gains: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated queries (rows, heads, dim), rotated keys and values (rows, kv_heads, dim), float16."""
    y = qkv.float() if bias is None else qkv.float() + bias
    heads = y.view(len(y), -1, shape.dim)
    q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)

    def turn(x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        if gain is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain
        low, high = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
        c = cos[position.long()][:, None]
        s = sin[position.long()][:, None]
        turned = (low * c - high * s, high * c + low * s)
        return (torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)).half()

    q_gain, k_gain = head_gains if head_gains is not None else (None, None)
    return turn(q, q_gain), turn(k, k_gain), v.half()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: HeadShape) -> torch.Tensor:
    """One row's attention. q: (heads, dim); k, v: (keys, kv_heads, dim), its keys in order. Returns (heads, dim)."""
    keys = k.float().repeat_interleave(shape.group, dim=1).transpose(0, 1)
    values = v.float().repeat_interleave(shape.group, dim=1).transpose(0, 1)
    score = (keys @ q.float()[:, :, None]).squeeze(-1) / math.sqrt(shape.dim)
    return (torch.softmax(score, dim=1)[:, None] @ values).squeeze(1).bfloat16()


def sample_rows(logits: torch.Tensor, specs: list[SamplingSpec]) -> list[int]:
    """The token that each spec takes from its row of logits (rows, vocab), by sorting; -1 as the kernel has it."""
    fractions = torch.from_numpy(fraction_weights()).long()
    tokens = []
    for row, d in zip(logits.cpu(), specs, strict=True):
        top = row.max()
        if d.greedy or not top.isfinite():
            tokens.append(int((row == top).nonzero()[0]) if top.isfinite() else -1)
            continue
        depth = ((top - row) * torch.tensor(d.scale, dtype=torch.float32)).clamp(max=MAX_DEPTH).long()
        weight = fractions[depth % (1 << FRACTION_BITS)] >> (depth >> FRACTION_BITS)
        limit = d.max_depth
        ordered, ids = depth.sort()
        kept = torch.ones_like(depth, dtype=torch.bool)
        if d.top_k:
            kept = depth <= ordered[min(d.top_k, len(row)) - 1]
        if d.top_p < 1.0:
            sums = torch.where(kept, weight, 0)[ids].cumsum(0)
            limit = min(limit, int(ordered[(sums.double() >= d.top_p * float(sums[-1])).nonzero()[0]]))
        sums = torch.where(kept & (depth <= limit), weight, 0).cumsum(0)
        tokens.append(int((sums <= int(d.noise * float(sums[-1]))).sum()))
    return tokens
