"""A built-in model of over a gigabyte is the right one: our predictions beside llama.cpp's over a float32 copy of it.

Run by name, `pytest tests/exactness/test_large_model.py`, where the model has been fetched: `tandem models pull
qwen2.5-coder-1.5b`. Takes 9 GiB of memory and minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.execution.runner import Runner
from engine.models import catalog
from engine.models.text.tokenizer import load_tokenizer
from engine.models.weights.gguf import open_gguf
from tests.exactness import teacher_forcing as forced

MODEL = "qwen2.5-coder-1.5b"
ROUNDED = forced.Bounds(agreement=0.997, loss_ratio=0.002)
"""What rounding activations to 8 bits, on our side alone, may take: two of the 963 sure positions."""


@pytest.fixture
def model() -> Path:
    path = catalog.fetched_path(MODEL)
    if path is None:
        pytest.skip(f"{MODEL} is not in {catalog.models_dir()}")
    return path


def agreement(model: Path, runner: Runner) -> forced.Agreement:
    mine = forced.predicted(runner, forced.texts(load_tokenizer(open_gguf(model).metadata)))
    return forced.compare(mine, forced.recorded(forced.DATA / "qwen2_peer_unpacked.json"))


def test_predictions_over_float32_weights_are_the_peers(model: Path) -> None:
    found = agreement(model, forced.float32_runner(model))
    assert found.positions == 1000
    assert found.within(forced.FLOAT32)


def test_predictions_over_quantised_weights_are_those_of_the_peer_over_float32_ones(model: Path) -> None:
    found = agreement(model, forced.load_model(model).runner)
    assert found.positions == 1000
    assert found.within(ROUNDED)
