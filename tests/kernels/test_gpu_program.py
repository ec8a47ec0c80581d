"""A small model's recorded GPU program: its logits do not depend on how the tokens are cut into passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.execution.cuda.loading import passes_to_compile
from engine.execution.rows import SlotRows, pack
from engine.execution.runner import sample_all
from engine.models import llama
from kernels.gpu import launch
from kernels.gpu.batch import BatchShape
from kernels.gpu.launch import INTERPRETED, LaunchMode
from kernels.gpu.packing import PackedFormat
from kernels.gpu.program import CudaOps
from kernels.gpu.replay import CudaProgram
from kernels.gpu.sampling import Choosing
from kernels.gpu.weights import FileWeights
from kernels.quant_types import QuantType, RawTensor
from kernels.sampling import GREEDY, sampling_spec
from tests.support.tiny_model import raw

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
CONFIG = llama.LlamaConfig(
    layers=1, hidden=64, ffn=64, heads=2, kv_heads=1, head_dim=16, vocab=48, context=64, rms_eps=1e-5,
    rope_base=1e4, rope_dims=16,
)  # fmt: skip


def tensors(config: llama.LlamaConfig) -> dict[str, RawTensor]:
    rng = np.random.default_rng(5)
    kv, q = config.attention.kv_width, config.attention.q_width
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab, config.hidden),
        "output_norm.weight": (config.hidden,),
    }
    for i in range(config.layers):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (config.hidden,),
            f"blk.{i}.attn_q.weight": (q, config.hidden),
            f"blk.{i}.attn_k.weight": (kv, config.hidden),
            f"blk.{i}.attn_v.weight": (kv, config.hidden),
            f"blk.{i}.attn_output.weight": (config.hidden, q),
            f"blk.{i}.ffn_norm.weight": (config.hidden,),
            f"blk.{i}.ffn_gate.weight": (config.ffn, config.hidden),
            f"blk.{i}.ffn_up.weight": (config.ffn, config.hidden),
            f"blk.{i}.ffn_down.weight": (config.hidden, config.ffn),
        }
    out = {}
    for name, shape in shapes.items():
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        out[name] = RawTensor(name, QuantType.F32, shape, values.reshape(shape[0], -1).view(np.uint8))
    return out


class Slots:
    """KV ranges of plain tensors, and their address table."""

    def __init__(self, slots: int) -> None:
        width = CONFIG.attention.kv_width
        self.kv = torch.full((slots, 2 * CONFIG.layers, CONFIG.context, width), torch.nan, dtype=torch.float16)
        self.kv = self.kv.to(DEVICE)
        self.base: NDArray[np.uint64] = np.array(
            [[self.kv[s, t].data_ptr() for t in range(2 * CONFIG.layers)] for s in range(slots)], np.uint64
        )


@pytest.fixture(scope="module")
def program() -> CudaProgram:
    ops = CudaOps(FileWeights(DEVICE, torch.bfloat16, pack=False), DEVICE, CONFIG.context)
    llama.record(ops, CONFIG, tensors(CONFIG))
    return ops.finish(max_rows=64)


def test_chunks_decode_and_trees_agree_with_one_pass(program: CudaProgram) -> None:
    text = np.random.default_rng(1).integers(0, CONFIG.vocab, 21).tolist()
    slots = Slots(3)
    whole = program.run(pack([SlotRows(0, 0, text, logits=range(21))]), slots.base).copy()
    program.run(pack([SlotRows(1, 0, text[:18])]), slots.base)
    other = SlotRows(2, 0, [7, 8])
    tree = SlotRows(1, 18, [text[18], 3, text[19], 4, text[20]], [-1, 0, 0, 2, 2], logits=[0, 2, 4])
    branch = program.run(pack([other, tree]), slots.base)
    np.testing.assert_allclose(branch, whole[18:], rtol=0.05, atol=0.05)
    assert np.isfinite(whole).all()


def test_a_pass_without_logits_returns_none(program: CudaProgram) -> None:
    slots = Slots(1)  # held: the pass writes to its memory
    assert program.run(pack([SlotRows(0, 0, [1])]), slots.base).shape == (0, CONFIG.vocab)


def test_tokens_are_drawn_where_the_logits_are(program: CudaProgram) -> None:
    """Greedy and sampled rows beside one whose logits are asked for."""
    slots = Slots(3)
    sampled = sampling_spec(0.7, 1.5, top_k=0, top_p=1.0, min_p=0.0)
    draws = [GREEDY, sampled, None]
    batch = pack([SlotRows(s, 0, [s + 1], logits=[0]) for s in range(3)])
    got = [np.array(one) for one in program.run_and_sample(batch, slots.base, draws)]
    want = sample_all(program.logits(3).cpu().numpy(), draws)
    for one, other in zip(got, want, strict=True):
        assert np.array_equal(one, other)
    assert [one.shape for one in got] == [(), (), (CONFIG.vocab,)]
    assert program.run_and_sample(pack([SlotRows(0, 1, [1])]), slots.base, []) == []
    with pytest.raises(ValueError, match="1 specs for 3 rows of logits"):
        program.run_and_sample(batch, slots.base, [GREEDY])


class Taken:
    """What stands for a captured graph: its replays are counted."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def test_what_an_engine_will_meet_is_captured_before_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CudaOps(FileWeights(DEVICE, torch.bfloat16, pack=False), DEVICE, CONFIG.context)
    llama.record(ops, CONFIG, tensors(CONFIG))
    made = ops.finish(max_rows=300)
    made.use_graphs = False
    captured: dict[object, Taken] = {}

    def capture(key: object, enqueue: Callable[[], None]) -> Taken:
        captured[key] = made._graphs[key] = Taken()  # type: ignore[index, assignment]
        return captured[key]

    monkeypatch.setattr(made, "_capture", capture)
    monkeypatch.setattr(made, "_steps", ())
    monkeypatch.setattr("kernels.gpu.replay.sample_rows", lambda *_: None)
    slots = Slots(3)
    sampled = sampling_spec(0.3, 1.0, top_k=0, top_p=1.0, min_p=0.0)
    for count, rows in passes_to_compile(3, 300):
        shares = [SlotRows(s, 0, [1] * rows, logits=[rows - 1]) for s in range(count)]
        made.run_and_sample(pack(shares), slots.base, [replace(sampled, top_k=2)] * count)
    made.warm_up(slots.base, 1000)
    assert not captured
    made.use_graphs = True
    made._seen.clear()
    made.warm_up(slots.base, 1000)
    known = dict(captured)
    assert all(taken.replays == 1 for taken in captured.values())
    passes = len(captured)
    for lengths in ([3], [600, 50, 1], [2, 999]):
        shares = [SlotRows(s, n, [1], logits=[0]) for s, n in enumerate(lengths)]
        for one in (GREEDY, sampled, replace(sampled, top_k=3)):
            made.run_and_sample(pack(shares), slots.base, [one] * len(shares))
            passes += 2
    for rows in (1, 2, 3, 9, 17, 40, 64, 100, 129, 200, 257, 300):
        made.run_and_sample(pack([SlotRows(0, 0, [1] * rows, logits=[rows - 1])]), slots.base, [GREEDY])
        passes += 2
    made.run_and_sample(pack([SlotRows(0, 0, [1] * 300)]), slots.base, [])
    assert captured == known
    assert sum(taken.replays for taken in captured.values()) == passes + 1


class Rehearsed:
    """What stands for a captured graph: a replay runs its kernels."""

    def __init__(self, enqueue: Callable[[], None]) -> None:
        self.replay = enqueue


def test_what_is_foreseen_is_tried_over_padding_alone(program: CudaProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(2)
    slots.kv.fill_(7.0)
    tried: list[object] = []

    def capture(key: object, enqueue: Callable[[], None]) -> Rehearsed:
        tried.append(key)
        return Rehearsed(enqueue)

    monkeypatch.setattr(program, "_capture", capture)
    monkeypatch.setattr(program, "_ran", {(2, 2), (64, 1), Choosing.SEARCH})
    monkeypatch.setattr(program, "use_graphs", True)
    program.warm_up(slots.base, CONFIG.context)
    assert {key for key in tried if len(key) == 2} == {  # type: ignore[arg-type]
        (BatchShape(2, 2, 4, 0, 2), program.mode),
        (BatchShape(64, 0, 0, 1, 1), program.mode),
        (BatchShape(64, 0, 0, 1, 0), program.mode),
    }
    assert (slots.kv == 7.0).all()


def test_what_was_never_compiled_is_not_captured(program: CudaProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is compiled inside a capture would break it."""

    def capture(key: object, enqueue: Callable[[], None]) -> Taken:
        raise AssertionError(f"captured {key}")

    monkeypatch.setattr(program, "_capture", capture)
    monkeypatch.setattr(program, "_ran", set())
    monkeypatch.setattr(program, "use_graphs", True)
    program.warm_up(Slots(2).base, 1000)


def test_too_many_rows_are_refused(program: CudaProgram) -> None:
    with pytest.raises(ValueError, match="a batch of 65 rows; up to 64"):
        program.run(pack([SlotRows(0, 0, [0] * 65)]), Slots(1).base)


@pytest.mark.parametrize(
    ("capability", "mode", "copies"),
    [
        ((8, 0), LaunchMode.PLAIN, False),
        ((9, 0), LaunchMode.CHAINED, True),
        ((10, 0), LaunchMode.CHAINED, False),
        ((12, 0), LaunchMode.CHAINED, False),
    ],
)
def test_a_gpu_is_used_as_its_generation_allows(
    capability: tuple[int, int], mode: LaunchMode, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    gpu = torch.device("cuda", 0)
    assert launch.default_mode(gpu) is mode
    assert launch.has_tma(gpu) is copies
    assert launch.default_mode(torch.device("cpu")) is LaunchMode.PLAIN


MIXED = llama.LlamaConfig(
    layers=1, hidden=256, ffn=128, heads=4, kv_heads=1, head_dim=16, vocab=48, context=64, rms_eps=1e-5,
    rope_base=1e4, rope_dims=16,
)  # fmt: skip
FORMS = {
    "attn_q": QuantType.Q4_K, "attn_k": QuantType.Q4_K, "attn_v": QuantType.Q6_K, "attn_output": QuantType.Q8_0,
    "ffn_gate": QuantType.Q5_K, "ffn_up": QuantType.Q5_K, "ffn_down": QuantType.Q4_1, "token_embd": QuantType.Q6_K,
}  # fmt: skip


def mixed_tensors() -> dict[str, RawTensor]:
    rng = np.random.default_rng(8)
    plain = tensors(MIXED)
    kinds = {name: FORMS.get(name.split(".")[-2]) for name in plain}
    return {name: raw(name, kinds[name] or QuantType.F32, plain[name].shape, rng, 0.05) for name in plain}


def test_packed_forms_beside_each_other_run_as_unpacked_ones() -> None:
    results = []
    for pack_them in (False, True):
        ops = CudaOps(FileWeights(DEVICE, torch.float16, pack=pack_them), DEVICE, MIXED.context)
        llama.record(ops, MIXED, mixed_tensors())
        made = ops.finish(max_rows=128)
        kv = torch.zeros((2, 128, MIXED.attention.kv_width), dtype=torch.float16, device=DEVICE)
        base = np.array([[t.data_ptr() for t in kv]], np.uint64)
        results.append(made.run(pack([SlotRows(0, 0, [1, 2, 3], logits=range(3))]), base).copy())
    np.testing.assert_allclose(results[1], results[0], rtol=0.02, atol=0.02 * np.abs(results[0]).max())
    uses = dict(made.forms())
    assert uses["q6_k", "float16"] == 1
    assert uses["q6_k", PackedFormat.Q8_SHORT.label] == 1
    assert uses["q4_k", PackedFormat.Q4.label] == 2
    assert uses["q5_k", PackedFormat.Q8_MIN.label] == 2
    assert sum(uses.values()) == 8
