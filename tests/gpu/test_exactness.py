"""On a CUDA device: a row's bits do not depend on its batch neighbours, its tile, graphs, chunks, trees or where its KV
lies."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_products_of_every_tile() -> None:
    from tests.gpu.bits import bits_products

    assert bits_products(["llama-1b"], cases=100) == 0


def test_packed_products() -> None:
    from tests.gpu.bits import bits_packed

    assert bits_packed(["llama-1b"], cases=40) == 0


def test_draws_are_the_hosts() -> None:
    from tests.gpu.drawing import drawing

    assert drawing(passes=4) == 0


@pytest.mark.parametrize("form", ["bf16", "q4", "q8", "fp8", "nvfp4"])
def test_whole_forwards(form: str) -> None:
    from tests.gpu.bits import bits_program

    assert bits_program("llama-1b", form, layers=2) == 0


def test_pool_pages_hold_the_same_bits() -> None:
    from tests.gpu.pool import pool_against_plain
    from tests.gpu.real import vmm

    assert vmm()
    assert pool_against_plain(["llama-1b"])
