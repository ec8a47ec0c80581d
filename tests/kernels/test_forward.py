"""Whole forwards of tiny models: every backend against the float32 reference, for each weight form and variant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import RowBatch, SlotRows, pack
from engine.models import llama
from engine.models.llama import LlamaConfig, RopeScaling
from kernels import reference
from kernels.quant_types import QuantType
from kernels.reference_ops import ReferenceOps
from tests.kernels.backends import each_backend, named
from tests.support.tiny_model import QWEN_LIKE, TINY, PlainKv, fitting, tiny_tensors

VARIANTS = {
    "llama": TINY,
    "qwen": QWEN_LIKE,
    "one query head": replace(TINY, heads=2),
    "fourteen query heads a kv head": replace(TINY, heads=28),
    "wide heads": replace(TINY, heads=3, kv_heads=1, head_dim=40, rope_dims=32),
    "yarn": replace(TINY, rope_scaling=RopeScaling("yarn", 4.0, 128)),
    "linear": replace(TINY, rope_scaling=RopeScaling("linear", 2.0)),
}


def batches(random: np.random.Generator, vocab: int) -> list[RowBatch]:
    """A prompt over two splits of attention, its continuation beside a tree and another prompt."""

    def tokens(n: int) -> list[int]:
        return [int(t) for t in random.integers(vocab, size=n)]

    return [
        pack([SlotRows(0, 0, tokens(133), logits=range(0, 133, 11))]),
        pack(
            [
                SlotRows(1, 0, tokens(9), logits=range(9)),
                SlotRows(0, 133, tokens(5), parents=[-1, 0, 0, 2, -1], logits=range(5)),
            ]
        ),
        pack([SlotRows(0, 133, tokens(1), logits=[0]), SlotRows(1, 9, tokens(1), logits=[0])]),
    ]


def largest_difference(config: LlamaConfig, form: QuantType, head_form: QuantType, name: str) -> float:
    """The largest difference from the reference over the largest logit."""
    tensors = tiny_tensors(config, form, head_form)
    runner = CpuRunner(config, tensors, threads=2, max_rows=160, backend=named(name))
    expected_ops = ReferenceOps(reference.linear_exact if name == "torch" else reference.linear)
    llama.record(expected_ops, config, tensors)
    kv, reference_kv = PlainKv(runner.layout, 2, 160), PlainKv(runner.layout, 2, 160)
    runner.attach(kv, 2)
    worst = 0.0
    for batch in batches(np.random.default_rng(1), config.vocab):
        mine, theirs = runner.forward(batch), expected_ops.run(batch, reference_kv.addresses())
        assert mine.shape == theirs.shape == (len(batch.logit_rows), config.vocab)
        assert np.isfinite(mine).all()
        worst = max(worst, float(np.abs(mine - theirs).max() / np.abs(theirs).max()))
    return worst


@each_backend
@pytest.mark.parametrize("form", list(QuantType))
def test_forms(name: str, form: QuantType) -> None:
    """Quantised inputs round differently here and there, so quantised forms agree to a rounding step; float forms
    to float32."""
    assert largest_difference(fitting(TINY, form), form, form, name) < (3e-2 if form.quantised else 1e-3)


@each_backend
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(name: str, variant: str) -> None:
    assert largest_difference(VARIANTS[variant], QuantType.F32, QuantType.F16, name) < 1e-3


@pytest.mark.parametrize("form", list(QuantType))
def test_portable_bits(form: QuantType) -> None:
    """The plain C++ kernels and this machine's instructions compute the same bits."""
    config = fitting(QWEN_LIKE, form)
    tensors = tiny_tensors(config, form, form)
    results = []
    for name in ("native", "portable"):
        runner = CpuRunner(config, tensors, threads=2, max_rows=160, backend=named(name))
        kv = PlainKv(runner.layout, 2, 160)
        runner.attach(kv, 2)
        results.append([runner.forward(b).copy() for b in batches(np.random.default_rng(2), config.vocab)])
    for native, portable in zip(*results, strict=True):
        assert np.array_equal(native.view(np.uint32), portable.view(np.uint32))
