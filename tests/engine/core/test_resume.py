"""Slots keep their conversations: what is reused, where a next turn goes, and that it changes no token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.request import Admitted, Done
from tests.support.fake_model import RecordingSink, Rig, greedy

Make = Callable[..., Rig]
SYSTEM = list(range(100, 150))


def chat(*turns: list[int]) -> tuple[list[int], int]:
    """A conversation's prompt over the common system prompt, and where its first user message ends."""
    return SYSTEM + [t for turn in turns for t in [*turn, 2]], len(SYSTEM) + len(turns[0])


def ask(r: Rig, *turns: list[int], max_tokens: int = 5, **fields: object) -> RecordingSink:
    prompt, end = chat(*turns)
    _, sink = r.submit(prompt, max_tokens, first_user_end=end, **fields)
    r.run_until_idle()
    assert sink.tokens() == greedy(prompt, max_tokens)
    return sink


def placed(sink: RecordingSink) -> tuple[int, int]:
    event = sink.of(Admitted)[0]
    return event.slot, event.cached_tokens


def test_the_same_request_twice_reads_one_token(rig: Make) -> None:
    r = rig(parallel=2)
    assert placed(ask(r, [7, 8, 9])) == (0, 0)
    rows = sum(sum(p.values()) for p in r.runner.passes)
    again = ask(r, [7, 8, 9])
    prompt_len = len(chat([7, 8, 9])[0])
    assert placed(again) == (0, prompt_len - 1)
    assert again.of(Done)[0].cached_tokens == prompt_len - 1
    assert sum(sum(p.values()) for p in r.runner.passes) - rows == 1 + 4


def test_next_turn_reuses_the_answer_too(rig: Make) -> None:
    r = rig(parallel=2)
    prompt, end = chat([7, 8, 9])
    ask(r, [7, 8, 9])
    answer = greedy(prompt, 5)
    longer = prompt + answer + [3, 11, 12, 2]
    _, sink = r.submit(longer, 5, first_user_end=end)
    r.run_until_idle()
    # The last token drawn was never computed, so its row is read.
    assert placed(sink) == (0, len(prompt) + 4)
    assert sink.tokens() == greedy(longer, 5)


def test_alternating_conversations_each_keep_their_slot(rig: Make) -> None:
    """Two conversations over one system prompt, then a title request: the free slot first, neither is lost."""
    r = rig(parallel=3)
    a, b = [[7] * 20], [[8] * 20]
    assert placed(ask(r, *a)) == (0, 0)
    assert placed(ask(r, *b)) == (1, 0)
    for turn in range(3):
        a.append([20 + turn] * 4)
        b.append([30 + turn] * 4)
        slot, cached = placed(ask(r, *a))
        assert (slot, cached >= len(SYSTEM) + 20) == (0, True)
        slot, cached = placed(ask(r, *b))
        assert (slot, cached >= len(SYSTEM) + 20) == (1, True)
    assert placed(ask(r, [9] * 5)) == (2, 0)
    assert placed(ask(r, *a, [50]))[0] == 0
    assert placed(ask(r, *b, [51]))[0] == 1


def test_the_least_recently_used_conversation_goes(rig: Make) -> None:
    r = rig(parallel=2)
    ask(r, [7] * 10)
    r.clock.advance(1)
    ask(r, [8] * 10)
    r.clock.advance(1)
    ask(r, [7] * 10)
    r.clock.advance(1)
    slot, cached = placed(ask(r, [9] * 10))
    assert slot == 1
    assert cached == len(SYSTEM)  # the common head is reused where it lies
    assert placed(ask(r, [7] * 10))[0] == 0


def test_namespaces_share_nothing(rig: Make) -> None:
    r = rig(parallel=1)
    ask(r, [7] * 10, namespace="a")
    assert placed(ask(r, [7] * 10, namespace="b")) == (0, 0)
    assert placed(ask(r, [7] * 10, namespace="b"))[1] > 0


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_resumed_reads_equal_cold_ones_at_any_chunk(rig: Make, chunk: int) -> None:
    r = rig(parallel=1, prefill_chunk=chunk)
    turns = [[7] * 9]
    for i in range(4):
        ask(r, *turns)
        turns.append([40 + i] * (3 + i))
    ask(r, [7] * 4, [6])  # a fork in the middle of the first message


def test_a_busy_home_is_waited_for_then_given_up(rig: Make) -> None:
    r = rig(parallel=2)
    prompt, end = chat([7] * 10)
    _, first = r.submit(prompt, 150, first_user_end=end)
    r.turns(12)
    longer = [*prompt, 5, 6, 2]
    _, second = r.submit(longer, 5, first_user_end=end)
    r.turns(3)
    queue = r.engine.health().queue
    r.clock.advance(0.2)
    r.engine.turn()
    queue = r.engine.health().queue
    assert [(q.state, q.home, q.reason) for q in queue] == [
        ("waiting_home", 0, "waits up to 3 s for slot 0, which holds its conversation")
    ]
    r.clock.advance(3)
    r.engine.turn()
    assert placed(second) == (1, 0)
    assert r.engine.health().parallel.slot0_gave_up == 1
    r.run_until_idle()
    assert second.tokens() == greedy(longer, 5)
    assert first.tokens() == greedy(prompt, 150)


def test_a_busy_home_that_comes_free_is_taken(rig: Make) -> None:
    r = rig(parallel=2)
    prompt, end = chat([7] * 10)
    _, first = r.submit(prompt, 4, first_user_end=end)
    r.turns(2)
    longer = prompt + greedy(prompt, 4)[:2] + [2]
    _, second = r.submit(longer, 5, first_user_end=end)
    r.run_until_idle()
    assert placed(second)[0] == 0
    assert placed(second)[1] >= len(prompt)
    assert first.of(Done)
    assert second.tokens() == greedy(longer, 5)


def test_pages_past_a_conversation_are_given_back(rig: Make) -> None:
    r = rig(parallel=1)
    ask(r, [7] * 100, max_tokens=40)
    before = r.pool.committed_bytes(0)
    ask(r, [8] * 3, max_tokens=1)
    assert r.pool.committed_bytes(0) < before
