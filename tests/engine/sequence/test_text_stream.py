"""Stop strings and log-probabilities as a client sees them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from engine.execution.sampling import token_logprob
from engine.request import Finished, FinishReason, SamplingParams, Text, TokenLogprob
from tests.support.fake_model import RecordingSink, Rig, greedy, next_logits

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]


def logprobs_of(sink: RecordingSink, choice: int = 0) -> list[TokenLogprob]:
    return [lp for e in sink.of(Text) if e.choice == choice for lp in e.logprobs]


def test_no_part_of_a_stop_string_is_sent(rig: Make) -> None:
    words = [f"{t} " for t in greedy(PROMPT, 20)]
    stop = "".join(words[5:8]).strip()
    r = rig(parallel=1)
    _, sink = r.submit(PROMPT, 20, stop=(stop, "never"), logprobs=0)
    r.run_until_idle()
    assert sink.text() == "".join(words[:5])
    assert sink.of(Finished) == [Finished(0, FinishReason.STOP, 8, stop)]
    assert [lp.token for lp in logprobs_of(sink)] == greedy(PROMPT, 5)


def test_a_partial_stop_at_the_end_is_flushed(rig: Make) -> None:
    tokens = greedy(PROMPT, 6)
    r = rig(parallel=1)
    _, sink = r.submit(PROMPT, 6, stop=(f"{tokens[-1]} and more",), logprobs=0)
    r.run_until_idle()
    assert sink.tokens() == tokens
    assert sink.of(Finished) == [Finished(0, FinishReason.LENGTH, 6)]
    assert [lp.token for lp in logprobs_of(sink)] == tokens
    assert sum(e.tokens for e in sink.of(Text)) == 6


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(seed=4)], ids=repr
)
@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_alone_and_in_company(rig: Make, params: SamplingParams, stream: bool) -> None:
    seen = []
    for slots in (1, 4):
        r = rig(parallel=slots)
        sinks = [r.submit(PROMPT, 9, logprobs=5, sampling=params, stream=stream)[1]]
        sinks += [r.submit([i, *PROMPT], 12)[1] for i in range(10, 13)]
        r.run_until_idle()
        seen.append(logprobs_of(sinks[0]))
        assert all(not logprobs_of(s) for s in sinks[1:])
    assert seen[0] == seen[1]
    path = list(PROMPT)
    for lp in seen[0]:
        assert lp == token_logprob(next_logits(path), lp.token, 5)
        assert math.isfinite(lp.logprob)
        path.append(lp.token)


def test_texts_come_in_order_and_finish_comes_last(rig: Make) -> None:
    r = rig(parallel=2)
    _, sink = r.submit(PROMPT, 7, n=2, sampling=SamplingParams(seed=9))
    r.run_until_idle()
    kinds = [type(e).__name__ for e in sink.events]
    assert kinds[0] == "Admitted"
    assert kinds[-1] == "Done"
    for choice in (0, 1):
        mine = [e for e in sink.events if getattr(e, "choice", None) == choice]
        assert isinstance(mine[-1], Finished)
        assert all(isinstance(e, Text) for e in mine[:-1])
