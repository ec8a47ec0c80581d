"""The model is the right one: our predictions beside llama.cpp's, which were recorded over the same texts."""

from __future__ import annotations

import pytest

from engine.tokenizer import load_tokenizer
from engine.weights.gguf import open_gguf
from tests.exactness import teacher_forcing as forced
from tests.support.models import default_model

MOST_UNPACKED_LOSS_RATIO = 0.0005


@pytest.mark.model
def test_predictions_over_float32_weights_are_the_peers() -> None:
    tokenizer = load_tokenizer(open_gguf(default_model()).metadata)
    mine = forced.predicted(forced.float32_runner(default_model()), forced.texts(tokenizer))
    agreement = forced.compare(mine, forced.recorded(forced.DATA / "smollm2_peer_unpacked.json"))
    assert agreement.positions == 1000
    assert agreement.rate >= forced.LEAST_AGREEMENT
    assert abs(agreement.loss_ratio) <= MOST_UNPACKED_LOSS_RATIO


@pytest.mark.model
def test_predictions_over_quantised_weights_are_the_peers() -> None:
    model = forced.load_model(default_model())
    mine = forced.ours(model, forced.texts(model.served.tokenizer))
    agreement = forced.compare(mine, forced.recorded(forced.DATA / "smollm2_peer.json"))
    assert agreement.positions == 1000
    assert agreement.rate >= forced.LEAST_AGREEMENT
    assert abs(agreement.loss_ratio) <= forced.MOST_LOSS_RATIO


def test_the_comparison_counts_only_where_the_peer_is_sure() -> None:
    at = forced.Prediction
    peer = [at(1, 0.5, -1.0), at(2, 0.05, -2.0), at(3, 2.0, -3.0)]
    mine = [at(1, 0.4, -1.1), at(9, 0.05, -2.0), at(8, 0.1, -3.2)]
    agreement = forced.compare(mine, peer)
    assert (agreement.positions, agreement.clear, agreement.agreeing) == (3, 2, 1)
    assert agreement.loss == pytest.approx(2.1)
    assert agreement.loss_ratio == pytest.approx(0.05)
    assert not agreement.passed
    assert forced.compare(peer, peer).passed
    with pytest.raises(ValueError, match="zip"):
        forced.compare(mine[:2], peer)
