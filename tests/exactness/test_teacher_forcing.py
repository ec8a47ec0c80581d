"""The model is the right one: our predictions beside llama.cpp's, which were recorded over the same texts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.models.text.tokenizer import load_tokenizer
from engine.models.weights.gguf import open_gguf
from tests.exactness import teacher_forcing as forced
from tests.support.gguf_files import TinyLlama, write_tiny_llama
from tests.support.models import default_model


@pytest.mark.model
def test_predictions_over_float32_weights_are_the_peers() -> None:
    tokenizer = load_tokenizer(open_gguf(default_model()).metadata)
    mine = forced.predicted(forced.float32_runner(default_model()), forced.texts(tokenizer))
    agreement = forced.compare(mine, forced.recorded(forced.DATA / "smollm2_peer_unpacked.json"))
    assert agreement.positions == 1000
    assert agreement.within(forced.FLOAT32)


@pytest.mark.model
def test_predictions_over_quantised_weights_are_the_peers() -> None:
    model = forced.load_model(default_model())
    mine = forced.predicted(model.runner, forced.texts(model.served.tokenizer))
    agreement = forced.compare(mine, forced.recorded(forced.DATA / "smollm2_peer.json"))
    assert agreement.positions == 1000
    assert agreement.within(forced.QUANTISED)


def test_the_float32_copy_holds_what_our_side_takes(tmp_path: Path) -> None:
    form = gguf.GGMLQuantizationType.Q4_K
    path = write_tiny_llama(tmp_path / "tiny.gguf", TinyLlama(arch="qwen2", width=256, hidden=256, form=form))
    taken = forced.Unpacked(open_gguf(path).tensors)
    with forced.unpacked(path) as file:
        copy = open_gguf(file)
        assert dict(copy.metadata).keys() == dict(open_gguf(path).metadata).keys()
        assert copy.tensors.keys() == taken.keys()
        for name, raw in copy.tensors.items():
            assert (raw.quant_type, raw.shape) == (taken[name].quant_type, taken[name].shape)
            np.testing.assert_array_equal(raw.data, taken[name].data)
    assert not file.exists()


def test_a_record_reads_back(tmp_path: Path) -> None:
    kept = [forced.Prediction(7, 0.25, -1.5), forced.Prediction(0, 12.0625, -0.00001)]
    forced.record(tmp_path / "peer.json", kept)
    assert forced.recorded(tmp_path / "peer.json") == kept


def test_the_comparison_counts_only_where_the_peer_is_sure() -> None:
    at = forced.Prediction
    peer = [at(1, 0.5, -1.0), at(2, 0.05, -2.0), at(3, 2.0, -3.0)]
    mine = [at(1, 0.4, -1.1), at(9, 0.05, -2.0), at(8, 0.1, -3.2)]
    agreement = forced.compare(mine, peer)
    assert (agreement.positions, agreement.clear, agreement.agreeing) == (3, 2, 1)
    assert agreement.loss == pytest.approx(2.1)
    assert agreement.loss_ratio == pytest.approx(0.05)
    assert not agreement.within(forced.QUANTISED)
    assert forced.compare(peer, peer).within(forced.FLOAT32)
    assert not agreement.within(forced.Bounds(agreement=0.5, loss_ratio=0.04))
    assert agreement.within(forced.Bounds(agreement=0.5, loss_ratio=0.06))
    with pytest.raises(ValueError, match="zip"):
        forced.compare(mine[:2], peer)
