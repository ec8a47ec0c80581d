"""The native backend's own promises: products by the reference, invariance checked at load, memory and errors."""

from __future__ import annotations

import numpy as np
import pytest

from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import SlotRows, pack
from kernels.cpu import backend, build
from kernels.cpu.native import NativeProgram
from kernels.dequantise import dequantise
from kernels.invariance import RowVarianceError
from kernels.quant_types import QuantType
from tests.kernels.backends import named
from tests.support.tiny_model import TINY, PlainKv, raw, tiny_tensors


@pytest.mark.parametrize("form", list(QuantType))
def test_reference_dequantises_as_the_gguf_package(form: QuantType) -> None:
    gguf_quants = pytest.importorskip("gguf.quants")
    from gguf.constants import GGMLQuantizationType

    tensor = raw("w", form, (24, 768), np.random.default_rng(3))
    theirs = gguf_quants.dequantize(tensor.data, GGMLQuantizationType[form.value.upper()])
    assert np.allclose(dequantise(tensor), theirs.reshape(24, 768), rtol=1e-6, atol=1e-7)


def test_a_variant_product_falls_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def vary(self: NativeProgram, matrices: object) -> None:
        raise RowVarianceError("q4_1", 64, 64, 3)

    monkeypatch.setattr(NativeProgram, "_check_rows", vary)
    runner = CpuRunner(
        TINY, tiny_tensors(TINY, QuantType.Q4_1, QuantType.Q8_0), threads=1, max_rows=4, backend=named("native")
    )
    assert runner.backend.startswith("torch")
    assert runner.backend_reason == "a q4_1 product of 64 x 64 gives a row other bits among 3 rows than alone"


def test_no_compiler_means_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    choice = backend.choose()
    assert choice.name == "torch"
    assert choice.reason == "CXX is 'no-such-compiler', which is not found"


def test_forced_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.choose("torch").reason == "TANDEM_CPU_BACKEND=torch"
    assert backend.choose("native").name == "native"
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="TANDEM_CPU_BACKEND=native, but CXX"):
        backend.choose("native")
    with pytest.raises(ValueError, match="is 'gpu'; auto, native and torch are possible"):
        backend.choose("gpu")


def test_a_failing_compiler_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cxx")
    broken = folder / "cxx"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.cpp: error: no such thing" >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(folder / "cache"))
    with pytest.raises(build.BuildError, match="error: no such thing"):
        build.build()
    assert not list((folder / "cache" / "kernels").iterdir())


def test_a_build_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    made = first.stat().st_mtime_ns
    assert build.build() == first
    assert first.stat().st_mtime_ns == made
    assert build.build(("TANDEM_PORTABLE",)) != first


def test_passes_that_do_not_fit_are_refused() -> None:
    runner = CpuRunner(
        TINY, tiny_tensors(TINY, QuantType.Q4_1, QuantType.Q8_0), threads=1, max_rows=4, backend=named("native")
    )
    with pytest.raises(RuntimeError, match="before attach"):
        runner.forward(pack([SlotRows(0, 0, [1])]))
    runner.attach(PlainKv(runner.layout, 1, 8), 1)
    with pytest.raises(ValueError, match="a pass of 5 rows; 1 to 4"):
        runner.forward(pack([SlotRows(0, 0, [1] * 5)]))
    with pytest.raises(ValueError, match="slot 1"):
        runner.forward(pack([SlotRows(1, 0, [1])]))
    with pytest.raises(ValueError, match=r"token outside 0 \.\. 89"):
        runner.forward(pack([SlotRows(0, 0, [90])]))
    with pytest.raises(ValueError, match="KV row outside"):
        runner.forward(pack([SlotRows(0, 6, [1, 2, 3])]))


def test_books() -> None:
    tensors = tiny_tensors(TINY, QuantType.Q4_1, QuantType.Q8_0)
    runner = CpuRunner(TINY, tensors, threads=1, max_rows=4, backend=named("native"))
    matrices = sum(t.data.nbytes for t in tensors.values() if len(t.shape) == 2)
    assert matrices <= runner.weight_bytes() < 1.2 * matrices
    assert sum(f.tensors for f in runner.weight_forms()) == len(tensors)
    assert runner.workspace_bytes() > 0
    row = TINY.kv_heads * TINY.head_dim * 2
    assert [t.row_bytes for t in runner.layout.tensors] == [row] * 2 * TINY.layers
