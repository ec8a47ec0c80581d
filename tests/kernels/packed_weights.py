"""Random packed weights of every form."""

from __future__ import annotations

import torch

from kernels.gpu.packing import Packed, PackedFormat, pack4, pack8, pack_fp8, pack_nvfp4


def random_packed(form: PackedFormat, n: int, k: int, generator: torch.Generator) -> Packed:
    """Weights of every code, scales over some powers of two and both signs."""

    def codes(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (n, k), generator=generator)

    def scales(groups: int) -> torch.Tensor:
        return torch.randn(n, groups, generator=generator) * 2.0 ** -torch.randint(3, 9, (n, 1), generator=generator)

    if form is PackedFormat.Q4:
        return pack4(codes(0, 16).to(torch.uint8), scales(k // 32), scales(k // 32))
    if form is PackedFormat.Q8_MIN:
        return pack8(codes(0, 256).to(torch.uint8), scales(k // 32), scales(k // 32))
    if form in (PackedFormat.Q8, PackedFormat.Q8_SHORT):
        return pack8(codes(-128, 128).to(torch.int8), scales(k // (32 if form is PackedFormat.Q8 else 16)))
    if form is PackedFormat.FP8:
        values = (torch.randn(n, k, generator=generator) * 40).to(torch.float8_e4m3fn)
        return pack_fp8(values, torch.rand(-(-n // 128), -(-k // 128), generator=generator) * 1e-2)
    if form is PackedFormat.NVFP4:
        group = (torch.rand(n, k // 16, generator=generator) * 440).to(torch.float8_e4m3fn)
        return pack_nvfp4(codes(0, 16).to(torch.uint8), group, torch.tensor(0.003))
    raise ValueError(f"{form} holds no codes")
