"""Measures a GPU for a model: which products it computes, their tiles, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

import torch

from engine.execution.cuda.shapes import PACKED_AS as SHAPE_FORMS
from engine.execution.cuda.shapes import random_packed
from engine.execution.devices import Gpu
from engine.execution.shapes import SHAPES, ShapeForm
from engine.models.llama import LlamaConfig
from kernels.gpu import nvrtc
from kernels.gpu.linear import Epilogue
from kernels.gpu.packing import PackedFormat
from kernels.gpu.tile_cache import Measured, path_for, read, write
from kernels.gpu.tuning import Product, tune
from kernels.gpu.weights import PACKED_AS, will_pack
from kernels.quant_types import QuantType, RawTensor


def products_of(config: LlamaConfig, tensors: Mapping[str, RawTensor], *, packs: bool) -> list[Product]:
    """The distinct products of a model's file as a GPU computes them; `packs` as in `FileWeights`."""
    dtype = torch.bfloat16 if tensors["token_embd.weight"].quant_type is QuantType.BF16 else torch.float16
    packs = packs and dtype is torch.float16

    def held(name: str) -> PackedFormat | None:
        tensor = tensors[name]
        return PACKED_AS[tensor.quant_type] if packs and will_pack(tensor) else None

    found: dict[Product, None] = {}

    def add(names: list[str], epilogue: Epilogue) -> None:
        forms = {held(name) for name in names}
        n, k = sum(tensors[name].shape[0] for name in names), tensors[names[0]].shape[1]
        finished = n // 2 if epilogue is Epilogue.GATED else n
        found[Product(finished, k, epilogue, forms.pop() if len(forms) == 1 else None, dtype)] = None

    for layer in range(config.layers):
        at = f"blk.{layer}"
        for _, run in groupby([f"{at}.attn_{part}.weight" for part in "qkv"], held):
            add(list(run), Epilogue.STORE)
        add([f"{at}.attn_output.weight"], Epilogue.ADD)
        add([f"{at}.ffn_gate.weight", f"{at}.ffn_up.weight"], Epilogue.GATED)
        add([f"{at}.ffn_down.weight"], Epilogue.ADD)
    add(["output.weight" if "output.weight" in tensors else "token_embd.weight"], Epilogue.STORE)
    return list(found)


def shape_products(forms: tuple[ShapeForm, ...] = (ShapeForm.BF16, ShapeForm.Q4)) -> list[Product]:
    """The products of the bench's shapes."""
    found: dict[Product, None] = {}
    for config in SHAPES.values():
        q, kv = config.attention.q_width, config.attention.kv_width
        for n, k, epilogue in (
            (q + 2 * kv, config.hidden, Epilogue.STORE),
            (config.hidden, q, Epilogue.ADD),
            (config.ffn, config.hidden, Epilogue.GATED),
            (config.hidden, config.ffn, Epilogue.ADD),
            (config.vocab, config.hidden, Epilogue.STORE),
        ):
            for form in forms:
                dense = form is ShapeForm.BF16
                dtype = torch.bfloat16 if dense else torch.float16
                found[Product(n, k, epilogue, None if dense else SHAPE_FORMS[form], dtype)] = None
    return list(found)


def tune_gpu(gpu: Gpu, model: Path | None, say: Callable[[str], None]) -> Path:
    """Measure `gpu` for the products of the file `model`, or of the bench's shapes, and keep the tiles beside what was
    measured earlier. Returns the file. Raises DamagedModel or UnsupportedModel for the model, OSError where the tiles
    cannot be kept, RuntimeError where the GPU fails."""
    from engine.models.gguf_config import llama_config
    from engine.models.weights.gguf import open_gguf

    torch.cuda.set_device(gpu.index)
    if model is not None:
        file = open_gguf(model)
        products = products_of(llama_config(file.metadata, file.tensors), file.tensors, packs=nvrtc.available())
    else:
        products = shape_products()
    found = tune(products, random_packed, say)
    path = path_for(gpu.name)
    try:
        earlier = read(path)
    except (OSError, ValueError):
        earlier = Measured()
    write(path, Measured({**earlier.dense, **found.dense}, {**earlier.packed, **found.packed}))
    return path
