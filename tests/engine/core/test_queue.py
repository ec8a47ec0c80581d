"""The queue's bound, its time limits, what is refused at the door, and draining."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.core.scheduling.inbox import Inbox, draining
from engine.protocol import WaitState
from engine.request import (
    Admitted,
    Done,
    Ending,
    Failed,
    Finished,
    FinishReason,
    Request,
    RequestError,
    SamplingParams,
    Waiting,
)
from tests.support.fake_model import VOCAB, RecordingSink, Rig, greedy

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]


def configured(**values: object) -> Callable[[EngineConfig], EngineConfig]:
    return lambda config: replace(config, **values)  # type: ignore[arg-type]


def failure(sink: RecordingSink) -> RequestError:
    return sink.of(Failed)[0].error


def test_one_runs_one_waits_four_are_refused(rig: Make) -> None:
    r = rig(parallel=1, config=configured(queue_limit=1))
    taken, refused = [], []
    for _ in range(6):
        try:
            taken.append(r.submit(PROMPT, 5)[1])
        except RequestError as error:
            refused.append((error.status, error.code, error.retry_after))
    assert len(taken) == 2
    assert refused == [(503, "queue_full", 5)] * 4
    r.run_until_idle()
    assert [s.tokens() for s in taken] == [greedy(PROMPT, 5)] * 2
    assert r.engine.health().parallel.totals.refused == 4
    assert r.submit(PROMPT, 5)  # there is room again


def test_the_bound_counts_waiting_requests_beyond_free_slots(rig: Make) -> None:
    r = rig(parallel=2, config=configured(queue_limit=1))
    for _ in range(3):
        r.submit(PROMPT, 50)
    r.turns(2)
    with pytest.raises(RequestError, match="1 request waiting, the limit is 1"):
        r.submit(PROMPT, 5)


def test_who_left_holds_no_place_though_the_engine_has_not_heard_of_it(rig: Make) -> None:
    r = rig(parallel=1, config=configured(queue_limit=1))
    _, runs = r.submit(PROMPT, 5)
    r.turns(1)
    for _ in range(5):
        r.engine.cancel(r.submit(PROMPT, 5)[0])
        r.engine.end(r.submit(PROMPT, 5)[0], draining(), Ending.TIMEOUT)
    _, waits = r.submit(PROMPT[::-1], 5)
    with pytest.raises(RequestError, match="1 request waiting, the limit is 1"):
        r.submit(PROMPT, 5)
    r.run_until_idle()
    assert [runs.tokens(), waits.tokens()] == [greedy(PROMPT, 5), greedy(PROMPT[::-1], 5)]
    totals = r.engine.health().parallel.totals
    assert (totals.served, totals.abandoned, totals.timeouts, totals.refused) == (2, 5, 5, 1)


def test_a_wait_says_why_once(rig: Make) -> None:
    r = rig(parallel=1)
    r.submit(PROMPT, 30)
    _, waiting = r.submit(PROMPT[::-1], 5)
    r.turns(10)
    assert waiting.events == [Waiting(WaitState.SLOT, "the only slot is busy")]
    queue = r.engine.health().queue
    assert [(q.id, q.state, q.reason, q.prompt_tokens, q.max_tokens) for q in queue] == [
        ("req-2", "waiting_slot", "the only slot is busy", 5, 5)
    ]


def test_waiting_too_long_for_a_slot(rig: Make) -> None:
    r = rig(parallel=1, config=configured(queue_timeout_s=10.0))
    _, runs = r.submit(PROMPT, 40)
    _, waits = r.submit(PROMPT, 5)
    r.turns(3)
    r.clock.advance(10.5)
    r.turns(1)
    error = failure(waits)
    assert (error.status, error.code, error.retry_after) == (429, "queue_timeout", 10)
    assert error.message == "no slot came free within 10 s (TANDEM_QUEUE_TIMEOUT): the only slot is busy"
    r.run_until_idle()
    assert runs.tokens() == greedy(PROMPT, 40)
    totals = r.engine.health().parallel.totals
    assert (totals.timeouts, totals.served) == (1, 1)


def test_running_too_long(rig: Make) -> None:
    r = rig(parallel=2, config=configured(request_timeout_s=60.0))
    _, old = r.submit(PROMPT, 200)
    r.turns(5)
    r.clock.advance(59)
    _, young = r.submit(PROMPT[::-1], 20)
    r.turns(2)
    r.clock.advance(2)
    r.turns(1)
    error = failure(old)
    assert (error.status, error.code) == (504, "request_timeout")
    assert "longer than 60 s (TANDEM_REQUEST_TIMEOUT)" in error.message
    r.run_until_idle()
    assert young.tokens() == greedy(PROMPT[::-1], 20)
    assert r.engine.health().parallel.totals.timeouts == 1


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "words"),
    [
        (256, {}, "context_length_exceeded", "the prompt has 256 tokens"),
        (257, {"first_user_end": 3}, "context_length_exceeded", "the prompt has 257 tokens"),
        (0, {}, "invalid_value", "no tokens"),
        (5, {"max_tokens": 0}, "invalid_value", "max_tokens must be at least 1, got 0"),
        (5, {"max_tokens": -1}, "invalid_value", "max_tokens must be at least 1, got -1"),
        (5, {"n": 0}, "invalid_value", "n must be at least 1, got 0"),
        (5, {"sampling": SamplingParams(logit_bias=((VOCAB, 1.0),))}, "invalid_value", "logit_bias names token 512"),
    ],
)
def test_what_can_never_run_is_refused_at_the_door(
    rig: Make, prompt: int, fields: dict[str, object], code: str, words: str
) -> None:
    r = rig(parallel=1, max_len=256)
    with pytest.raises(RequestError) as caught:
        r.submit([1] * prompt, **fields)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert words in caught.value.message
    assert caught.value.param is not None
    assert r.runner.passes == []
    assert r.engine.health().parallel.totals.refused == 0  # not published yet
    r.clock.advance(1)
    r.engine.turn()
    assert r.engine.health().parallel.totals.refused == 1


def test_tokens_outside_the_vocabulary_are_refused(rig: Make) -> None:
    r = rig(parallel=1)
    for bad in (-1, VOCAB):
        with pytest.raises(RequestError, match="outside the model's vocabulary of 512 tokens"):
            r.submit([1, bad])


def test_an_id_in_use_is_refused(rig: Make) -> None:
    r = rig(parallel=1)
    r.submit(PROMPT, 5, id="same")
    with pytest.raises(RequestError) as caught:
        r.submit(PROMPT, 5, id="same")
    assert caught.value.code == "duplicate_request_id"
    r.run_until_idle()
    r.submit(PROMPT, 5, id="same")


def test_a_prompt_of_one_token_less_than_the_window_gets_one_token(rig: Make) -> None:
    r = rig(parallel=1, max_len=256)
    prompt = [i % 500 + 1 for i in range(255)]
    _, sink = r.submit(prompt, None)
    r.run_until_idle()
    assert sink.of(Finished) == [Finished(0, FinishReason.LENGTH, 1)]
    assert sink.tokens() == greedy(prompt, 1)


@pytest.mark.parametrize(
    ("asked", "served", "cut"), [(None, 251, None), (1000, 251, 1000), (251, 251, None), (7, 7, None)]
)
def test_max_tokens_is_the_room_left_at_most(rig: Make, asked: int | None, served: int, cut: int | None) -> None:
    r = rig(parallel=1, max_len=256)
    _, sink = r.submit(PROMPT, asked)
    r.run_until_idle()
    admitted = sink.of(Admitted)[0]
    assert (admitted.max_tokens, admitted.cut_from) == (served, cut)
    assert sink.of(Done)[0].completion_tokens == served
    assert sink.tokens() == greedy(PROMPT, served)


def test_a_long_request_waits_for_slot_0_while_short_ones_pass(rig: Make) -> None:
    r = rig(parallel=2, max_len=256, side_max_len=64)
    r.submit(PROMPT, 100)
    r.turns(3)
    long = [i % 500 + 1 for i in range(100)]
    _, waits = r.submit(long, 10)
    _, passes = r.submit(PROMPT[::-1], 10)
    r.turns(4)
    assert waits.events == [Waiting(WaitState.SLOT0, "too long for a side slot (64 tokens); waits for slot 0")]
    assert passes.of(Admitted)[0].slot == 1
    r.run_until_idle()
    assert waits.of(Admitted)[0].slot == 0
    assert waits.tokens() == greedy(long, 10)


def test_draining_refuses_new_and_waiting_requests_and_lets_running_ones_finish(rig: Make) -> None:
    r = rig(parallel=1)
    _, runs = r.submit(PROMPT, 20)
    _, waits = r.submit(PROMPT, 20)
    r.turns(3)
    r.engine.drain()
    r.clock.advance(1)
    r.engine.turn()
    assert r.engine.health().status == "draining"
    with pytest.raises(RequestError) as caught:
        r.submit(PROMPT, 5)
    assert (caught.value.status, caught.value.code) == (503, "draining")
    r.run_until_idle()
    assert failure(waits).code == "draining"
    assert runs.tokens() == greedy(PROMPT, 20)


def test_a_drained_engine_serves_again_when_told_to(rig: Make) -> None:
    r = rig(parallel=1)
    assert not r.engine.resume()
    assert r.engine.drain()
    assert not r.engine.drain()
    r.run_until_idle()
    assert r.engine.resume()
    assert not r.engine.resume()
    r.clock.advance(1)
    r.engine.turn()
    assert r.engine.health().status == "ok"
    _, again = r.submit(PROMPT, 20)
    r.run_until_idle()
    assert again.tokens() == greedy(PROMPT, 20)


@pytest.mark.parametrize("loads_first", [True, False])
def test_a_door_shut_while_the_model_loads_opens_once_both_allow_it(loads_first: bool) -> None:
    inbox, one = Inbox(1), Request("a", "test", tuple(PROMPT), max_tokens=1)
    inbox.shut(draining)
    if loads_first:
        inbox.open(1)
        with pytest.raises(RequestError, match="drains"):
            inbox.submit(one, RecordingSink())
        inbox.unshut()
    else:
        inbox.unshut()
        with pytest.raises(RequestError, match="loading"):
            inbox.submit(one, RecordingSink())
        inbox.open(1)
    inbox.submit(one, RecordingSink())


def test_the_end_of_text_token_ends_a_choice(rig: Make) -> None:
    prompt = next(p for p in ([i, i + 1] for i in range(1, 500)) if 0 in greedy(p, 60))
    expected = greedy(prompt, 60)
    expected = expected[: expected.index(0)]
    r = rig(parallel=1)
    _, sink = r.submit(prompt, 60, ignore_eos=False)
    r.run_until_idle()
    assert sink.tokens() == expected
    assert sink.of(Finished) == [Finished(0, FinishReason.STOP, len(expected) + 1)]


def test_every_choice_gets_what_the_first_was_promised(rig: Make) -> None:
    """The first choice has slot 0's room, so the second waits for slot 0; cut to a side slot, both are cut."""
    r = rig(parallel=2, max_len=256, side_max_len=64)
    _, wide = r.submit(PROMPT, 100, n=2)
    r.run_until_idle()
    assert [f.completion_tokens for f in wide.of(Finished)] == [100, 100]
    r.submit([9] * 100, 150)  # only slot 0 holds it
    r.turns(3)
    _, cut = r.submit(PROMPT, 100, n=2)
    r.run_until_idle()
    assert cut.of(Admitted) == [Admitted(slot=1, cached_tokens=0, max_tokens=59, cut_from=100)]
    assert [f.completion_tokens for f in cut.of(Finished)] == [59, 59]
