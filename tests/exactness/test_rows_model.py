"""The built-in model's rows, bit for bit, through the one entry at 1, 2, 4 and 8 slots."""

from __future__ import annotations

import pytest

from engine.execution.cpu_runner import CpuRunner
from engine.models.gguf_config import llama_config
from engine.models.weights.gguf import open_gguf
from kernels.cpu import backend
from tests.exactness.test_rows import Subject, check_one_entry
from tests.support.models import default_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> Subject:
    file = open_gguf(default_model())
    config = llama_config(file.metadata, file.tensors)
    runner = CpuRunner(config, file.tensors, threads=2, max_rows=64, backend=backend.native())
    return Subject(runner, slots=8, window=64)


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_one_entry(model: Subject, slots: int) -> None:
    check_one_entry(model, slots, prefix=6, chunk=7)
