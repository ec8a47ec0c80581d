"""Packed weights hold what was packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.dequantise import dequantise
from kernels.gpu.packing import (
    grouped,
    join,
    pack4,
    pack8,
    pack16,
    pack_fp8,
    pack_nvfp4,
    scaled_fp8,
    unpack,
)
from kernels.gpu.weights import PACKED_AS, FileWeights
from kernels.gpu.weights import unpack as unpack_blocks
from kernels.quant_types import QuantType
from tests.support.tiny_model import raw

N, K = 48, 192


def codes(low: int, high: int) -> torch.Tensor:
    return torch.randint(low, high, (N, K), generator=torch.Generator().manual_seed(1))


def scales(groups: int, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    power = torch.randint(-9, 3, (N, 1), generator=generator)
    return torch.randn(N, groups, generator=generator).half().float() * 2.0**power


def scaled(value: torch.Tensor, alpha: torch.Tensor | None) -> torch.Tensor:
    """A scale as the product sees it: alpha's powers of two are taken out."""
    assert alpha is not None
    assert torch.equal(alpha, torch.exp2(alpha.log2().round()))
    return value.double() / alpha[:, None].double()


def held(minimum: torch.Tensor) -> torch.Tensor:
    """A minimum as float16 keeps it."""
    return minimum.half().double()


def test_four_bit_weights_unpack_to_the_formula() -> None:
    quants, scale, minimum = codes(0, 16).to(torch.uint8), scales(K // 32), scales(K // 32, 3)
    w = pack4(quants, scale, minimum)
    assert torch.equal(unpack(w), grouped(quants, scaled(scale, w.alpha), held(scaled(minimum, w.alpha))))


@pytest.mark.parametrize("group", [16, 32])
def test_eight_bit_weights_unpack_to_the_formula(group: int) -> None:
    quants, scale = codes(-128, 128).to(torch.int8), scales(K // group)
    w = pack8(quants, scale)
    step = scaled(scale, w.alpha)
    assert torch.equal(unpack(w), grouped(quants.int() + 128, step, held(-128.0 * step)))


def test_eight_bit_weights_with_a_minimum_unpack_to_the_formula() -> None:
    quants, scale, minimum = codes(0, 256).to(torch.uint8), scales(K // 32), scales(K // 32, 3)
    w = pack8(quants, scale, minimum)
    assert torch.equal(unpack(w), grouped(quants, scaled(scale, w.alpha), held(scaled(minimum, w.alpha))))


def test_block_scaled_floats_unpack_to_the_formula() -> None:
    weights = (scales(K) * 40).clamp(-448, 448).to(torch.float8_e4m3fn)
    block = torch.tensor([[3e-4, 5e-3]])
    w = pack_fp8(weights, block)
    wide = block.repeat_interleave(128, 1)[:, :K].expand(N, K)
    assert torch.equal(unpack(w), scaled_fp8(weights, scaled(wide, w.alpha).half()))


def test_four_bit_floats_are_exact() -> None:
    quants = codes(0, 16).to(torch.uint8)
    group = (scales(K // 16).abs() * 300).clamp(0, 448).to(torch.float8_e4m3fn)
    w = pack_nvfp4(quants, group, torch.tensor(0.25))
    assert w.alpha is not None
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    want = table[quants.long()].double() * group.double().repeat_interleave(16, 1) * 0.25
    assert torch.equal(unpack(w).double() * w.alpha[:, None].double(), want)


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


def test_only_one_form_is_joined() -> None:
    with pytest.raises(ValueError, match="cannot join q8 of 192 inputs, q8short of 192 inputs"):
        join([pack8(codes(-128, 128).to(torch.int8), scales(K // g)) for g in (32, 16)])


@pytest.mark.parametrize("form", [f for f in QuantType if f.quantised])
def test_file_forms_are_read_as_the_reference_reads_them(form: QuantType) -> None:
    tensor = raw("w", form, (32, 512), np.random.default_rng(6))
    want = dequantise(tensor)
    blocks = torch.from_numpy(np.array(tensor.data))
    np.testing.assert_allclose(unpack_blocks(blocks, form).view(32, 512).numpy(), want, rtol=1e-6, atol=1e-7)
    w = FileWeights(torch.device("cpu"), torch.float16, pack=True).matrix([tensor, tensor])
    assert not isinstance(w, torch.Tensor)
    assert w.format is PACKED_AS[form]
    assert w.alpha is not None
    got = (unpack(w).float() * w.alpha[:, None]).numpy()
    np.testing.assert_allclose(got, np.concatenate([want, want]), atol=2e-3 * float(np.abs(want).max()))
