"""`tandem bench shape` on the CPU: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from engine.execution.devices import Gpu, Gpus
from engine.execution.shapes import SHAPES, ShapeForm, ShapeRun, ShapeStep
from engine.models.llama import LlamaConfig
from tandem.bench import shape
from tandem.cli import run
from tandem.exits import Exit

TINY = LlamaConfig(
    layers=2, hidden=64, ffn=96, heads=4, kv_heads=2, head_dim=16, vocab=96, context=128, rms_eps=1e-5,
    rope_base=1e4, rope_dims=16, qk_norm=True,
)  # fmt: skip


@pytest.mark.parametrize("form", ["bf16", "q4", "q8"])
def test_a_shape_runs_on_the_cpu(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "llama-1b", TINY)
    words = ["bench", "shape", "llama-1b", "--device", "cpu", "--form", form, "--rows", "1,3", "--context", "40"]
    assert run([*words, "--layers", "1", "--seed", "5", "--json"]) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    assert (report["shape"], report["form"], report["layers"], report["seed"]) == ("llama-1b", form, 1, 5)
    assert report["device"] == "cpu"
    assert report["read_bytes"] > 0
    one, three = report["levels"]
    assert (one["rows"], one["identical"], one["over_one"]) == (1, 1, 1.0)
    assert (three["rows"], three["identical"]) == (3, 3)
    assert three["total_tok_s"] == pytest.approx(3e3 / three["step_ms"])


def test_rows_that_differ_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = ShapeRun("cpu", "test", 1, 1000, 1e9, (ShapeStep(1, 0.1, 1), ShapeStep(2, 0.1, 1)))
    monkeypatch.setattr("engine.execution.cpu_shapes.run_on_cpu", lambda *_args, **_named: made)
    assert run(["bench", "shape", "llama-1b", "--device", "cpu", "--form", "q4"]) == Exit.FAILURE
    assert "1/2" in capsys.readouterr().out


REFUSED = {
    "takes one name of llama-1b, qwen3-8b, not 'none'": [],
    "not 'gpt'": ["gpt"],
    "--form is 'q2'; allowed: bf16, q4, q8, fp8, nvfp4": ["llama-1b", "--form", "q2"],
    "--rows is '1,0'; allowed: numbers from 1 to 128": ["llama-1b", "--rows", "1,0"],
    "--context is 99999; allowed: 1 to 16384": ["llama-1b", "--context", "99999"],
    "--layers is 17; allowed: 1 to 16": ["llama-1b", "--layers", "17"],
    "--form fp8 runs on a CUDA GPU alone": ["llama-1b", "--form", "fp8", "--device", "cpu"],
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_what_cannot_be_measured_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "shape", *REFUSED[words]]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_an_older_gpu_does_not_run_8_bit_floats(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.execution.devices.look", lambda: Gpus((Gpu(0, "Old", (8, 6), 1 << 30),)))
    assert run(["bench", "shape", "llama-1b", "--form", "nvfp4"]) == Exit.USAGE
    assert "--form nvfp4 needs compute capability 8.9, cuda:0 (Old) has 8.6" in capsys.readouterr().err


def test_its_flags_belong_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "c1", "--rows", "2"]) == Exit.USAGE
    assert "belong to bench shape NAME" in capsys.readouterr().err


def test_every_form_has_a_place_to_run() -> None:
    assert set(ShapeForm) >= set(shape.ON_CPU)
