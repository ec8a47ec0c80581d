"""Packed weights hold what was packed."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.skinny import pack4, pack16, unpack


def test_four_bit_weights_unpack_to_the_formula() -> None:
    generator = torch.Generator().manual_seed(1)
    n, k = 48, 192
    quants = torch.randint(0, 16, (n, k), generator=generator, dtype=torch.uint8)
    scale = torch.randn(n, k // 32, generator=generator).half()
    minimum = torch.randn(n, k // 32, generator=generator).half()
    want = (quants * scale.double().repeat_interleave(32, 1) + minimum.double().repeat_interleave(32, 1)).half()
    assert torch.equal(unpack(pack4(quants, scale, minimum)), want)


def test_a_lane_holds_the_registers_of_the_matrix_instruction() -> None:
    weights = torch.arange(32 * 64, dtype=torch.int16).view(torch.float16).view(32, 64)
    words = pack16(weights).words.view(torch.int16).view(2, 4, 32, 4, 2)
    lane, tile, block = 13, 1, 2
    row, q = 16 * tile + lane // 4, 16 * block + 2 * (lane % 4)
    want = [[(row + a) * 64 + q + b + c for c in (0, 1)] for a, b in ((0, 0), (8, 0), (0, 8), (8, 8))]
    assert words[tile, block, lane].tolist() == want


@pytest.mark.parametrize(("n", "k"), [(24, 64), (16, 96)])
def test_shapes_that_do_not_divide_are_refused(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        pack16(torch.zeros(n, k, dtype=torch.float16))
