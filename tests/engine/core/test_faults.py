"""A failure stays with its request: the others write the same tokens, and the slot serves again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.execution.rows import RowBatch
from engine.request import Done, Failed, RequestError, Text
from tests.support.fake_model import RecordingSink, Rig, greedy

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]
OTHER = [2, 7, 1, 8, 2, 8]
CULPRIT = [400] * 6


def error_of(sink: RecordingSink) -> tuple[int, str]:
    error = sink.of(Failed)[0].error
    return error.status, error.code


def failing_on(token: int) -> Callable[[RowBatch], None]:
    def before(batch: RowBatch) -> None:
        if token in batch.token:
            raise RuntimeError("a kernel failed")

    return before


def test_a_pass_that_fails_while_a_prompt_is_read(rig: Make) -> None:
    r = rig(parallel=2)
    _, other = r.submit(OTHER, 40)
    r.turns(3)
    r.runner.before = failing_on(400)
    _, bad = r.submit(CULPRIT, 5)
    r.run_until_idle()
    assert error_of(bad) == (500, "engine_error")
    assert other.tokens() == greedy(OTHER, 40)
    r.runner.before = None
    _, again = r.submit(CULPRIT, 5)
    r.run_until_idle()
    assert again.tokens() == greedy(CULPRIT, 5)
    assert r.engine.health().parallel.totals.errors == 1


def test_a_joint_pass_that_fails_ends_the_one_at_fault_alone(rig: Make) -> None:
    r = rig(parallel=3)
    sinks = [r.submit(prompt, 40)[1] for prompt in (PROMPT, OTHER, CULPRIT)]
    r.turns(8)
    culprit = r.engine._serving().slots[2].running
    assert culprit is not None
    pending = culprit.token_ids[-1]
    r.runner.before = lambda batch: failing_on(pending)(batch) if 2 in batch.slot else None
    r.engine.turn()
    r.runner.before = None
    r.run_until_idle()
    assert error_of(sinks[2]) == (500, "engine_error")
    assert sinks[0].tokens() == greedy(PROMPT, 40)
    assert sinks[1].tokens() == greedy(OTHER, 40)


def test_a_pass_that_fails_once_for_all_costs_nobody_anything(rig: Make) -> None:
    r = rig(parallel=2)
    sinks = [r.submit(PROMPT, 30)[1], r.submit(OTHER, 30)[1]]
    r.turns(5)

    def joint_only(batch: RowBatch) -> None:
        if batch.n > 1:
            raise RuntimeError("two at once failed")

    r.runner.before = joint_only
    r.turns(3)
    r.runner.before = None
    r.run_until_idle()
    assert [s.tokens() for s in sinks] == [greedy(PROMPT, 30), greedy(OTHER, 30)]


@pytest.mark.parametrize("reading", [True, False])
def test_logits_that_are_not_finite(rig: Make, reading: bool) -> None:
    r = rig(parallel=2)
    _, other = r.submit(OTHER, 30)
    _, bad = r.submit(PROMPT, 30)
    if reading:
        r.runner.poison = PROMPT[-1]
    else:
        r.turns(6)
        seq = r.engine._serving().slots[1].running
        assert seq is not None
        while seq.token_ids[-1] in greedy(OTHER, 30):
            r.turns(1)
        r.runner.poison = seq.token_ids[-1]
    r.run_until_idle()
    assert error_of(bad) == (500, "engine_error")
    assert "not finite" in bad.of(Failed)[0].error.message
    assert other.tokens() == greedy(OTHER, 30)
    assert r.engine._serving().slots[1].state.rows == 0  # nothing of it is trusted


def test_a_copy_from_a_sibling_that_fails(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: int, target: int, start: int, end: int) -> None:
        raise RuntimeError("the copy failed")

    r = rig(parallel=3)
    _, other = r.submit(OTHER, 30)
    r.turns(2)
    with monkeypatch.context() as patch:
        patch.setattr(r.runner, "copy_rows", broken)
        _, bad = r.submit(PROMPT, 30, n=2)
        r.run_until_idle()
    assert error_of(bad) == (500, "engine_error")
    assert other.tokens() == greedy(OTHER, 30)


def test_a_request_that_cannot_begin_leaves_its_slot_to_others(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(parallel=1)
    r.submit(OTHER, 5)
    r.run_until_idle()
    with monkeypatch.context() as patch:
        patch.setattr("engine.core.lifecycle.Sampler", lambda *_, **__: 1 / 0)
        _, bad = r.submit(PROMPT, 30)
        r.run_until_idle()
    assert error_of(bad) == (500, "engine_error")
    r.check()
    _, again = r.submit(PROMPT, 5)
    r.run_until_idle()
    assert again.tokens() == greedy(PROMPT, 5)
    assert r.engine.health().parallel.totals.errors == 1


def test_an_empty_stop_string_is_refused_at_the_door(rig: Make) -> None:
    r = rig()
    with pytest.raises(RequestError, match="stop holds an empty string"):
        r.submit(PROMPT, 5, stop=("",))


def test_one_bad_choice_ends_its_request_with_all_its_choices(rig: Make) -> None:
    r = rig(parallel=3)
    _, bad = r.submit(PROMPT, 30, n=2)
    _, other = r.submit(OTHER, 30)
    r.turns(6)
    seq = r.engine._serving().slots[0].running
    assert seq is not None
    r.runner.poison = seq.token_ids[-1]
    r.engine.turn()
    r.runner.poison = None
    assert bad.of(Failed)
    assert not bad.of(Done)
    r.run_until_idle()
    assert other.tokens() == greedy(OTHER, 30)


def test_a_defect_of_the_loop_leaves_no_client_hanging(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(parallel=2)
    sinks = [r.submit(PROMPT, 30)[1], r.submit(OTHER, 30)[1], r.submit(OTHER, 30)[1]]
    r.turns(3)
    with monkeypatch.context() as patch:
        patch.setattr(r.engine._rounds, "decode_round", lambda: 1 / 0)
        assert r.engine._guarded_turn() is False
    assert [error_of(s) for s in sinks] == [(500, "engine_error")] * 3
    _, again = r.submit(PROMPT, 5)
    r.run_until_idle()
    assert again.tokens() == greedy(PROMPT, 5)


def test_what_was_sent_before_a_failure_stays_sent(rig: Make) -> None:
    r = rig(parallel=1)
    _, sink = r.submit(PROMPT, 30)
    r.turns(8)
    sent = sink.tokens()
    assert sent == greedy(PROMPT, 30)[: len(sent)]
    assert sent
    r.runner.before = failing_on(sent[-1])
    r.run_until_idle()
    assert sink.tokens() == sent
    assert [type(e) for e in sink.events[-2:]] == [Text, Failed]


def test_choices_that_fail_together_leave_released_pages_alone(rig: Make) -> None:
    r = rig(parallel=3)
    _, bad = r.submit(PROMPT, 30, n=2)
    _, other = r.submit(OTHER, 30)
    r.turns(8)
    first, second = (r.engine._serving().slots[i].running for i in (0, 1))
    assert first is not None
    assert second is not None
    failing = {first.token_ids[-1], second.token_ids[-1]}

    def before(batch: RowBatch) -> None:
        if failing & set(batch.token[batch.slot < 2].tolist()):
            raise RuntimeError("a kernel failed")

    r.runner.before = before
    passes = len(r.runner.passes)
    r.engine.turn()
    r.runner.before = None
    # The decode round, the first choice alone, the other request alone; the second choice ended with the first.
    assert r.runner.passes[passes:] == [{0: 1, 1: 1, 2: 1}, {0: 1}, {2: 1}]
    assert error_of(bad) == (500, "engine_error")
    r.run_until_idle()
    assert other.tokens() == greedy(OTHER, 30)
