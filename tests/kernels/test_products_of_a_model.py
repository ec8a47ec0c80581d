"""Which products a model's file makes a GPU compute."""

from __future__ import annotations

from engine.execution.cuda.tuning import products_of
from engine.models.llama import LlamaConfig
from kernels.gpu.linear import Epilogue
from kernels.gpu.packing import PackedFormat
from kernels.quant_types import QuantType
from tests.support.tiny_model import tiny_tensors

CONFIG = LlamaConfig(
    layers=2, hidden=256, ffn=512, heads=16, kv_heads=4, head_dim=16, vocab=96, context=64, rms_eps=1e-5,
    rope_base=1e4, rope_dims=16,
)  # fmt: skip


def test_layers_of_one_form_share_their_products() -> None:
    found = products_of(CONFIG, tiny_tensors(CONFIG, QuantType.Q4_K, QuantType.Q6_K), packs=True)
    assert [(p.n, p.k, p.epilogue, p.format) for p in found] == [
        (384, 256, Epilogue.STORE, PackedFormat.Q4),
        (256, 256, Epilogue.ADD, PackedFormat.Q4),
        (512, 256, Epilogue.GATED, PackedFormat.Q4),
        (256, 512, Epilogue.ADD, PackedFormat.Q4),
        (96, 256, Epilogue.STORE, PackedFormat.Q8_SHORT),
    ]


def test_another_form_of_the_values_is_a_product_of_its_own() -> None:
    tensors = tiny_tensors(CONFIG, QuantType.Q4_K, QuantType.Q6_K)
    tensors["blk.1.attn_v.weight"] = tiny_tensors(CONFIG, QuantType.Q6_K, QuantType.Q6_K)["blk.1.attn_v.weight"]
    found = [(p.n, p.format) for p in products_of(CONFIG, tensors, packs=True) if p.epilogue is Epilogue.STORE]
    both = {(384, PackedFormat.Q4), (320, PackedFormat.Q4), (64, PackedFormat.Q8_SHORT), (96, PackedFormat.Q8_SHORT)}
    assert set(found) == both


def test_without_packing_every_product_is_dense() -> None:
    found = products_of(CONFIG, tiny_tensors(CONFIG, QuantType.Q4_K, QuantType.Q6_K), packs=False)
    assert {p.format for p in found} == {None}
