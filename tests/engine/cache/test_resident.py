"""The resident level: what a slot holds, how much of a prompt it matches, and what it gives back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.level import CacheLevel
from engine.cache.resident import IdleConversations, ResidentLevel
from engine.memory.pressure import Level
from engine.sequence.cache_key import CacheKey, common_prefix
from engine.sequence.request_state import Slot


def key(*tokens: int, namespace: str = "") -> CacheKey:
    return CacheKey(namespace, np.array(tokens, np.int32))


def holding(level: ResidentLevel, slot: Slot, *tokens: int, namespace: str = "") -> None:
    slot.state.rewind(0)
    slot.state.extend(len(tokens))
    level.keep(slot, key(*tokens, namespace=namespace), len(tokens))


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_common_prefix_by_its_definition(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(np.array(a, np.int32), np.array(b, np.int32)) == expected


def test_a_match_is_restored_in_place_up_to_the_limit() -> None:
    level: ResidentLevel = ResidentLevel()
    assert isinstance(level.name, str)
    slot = Slot(0, 100)
    holding(level, slot, 1, 2, 3, 4, 5)
    prompt = key(1, 2, 3, 9)
    assert level.match(slot, prompt) == 3
    assert level.restore(slot, prompt, 3) == 3
    assert slot.state.rows == 3
    assert level.of(slot) is None  # it belongs to the new sequence now
    holding(level, slot, 1, 2, 3, 4, 5)
    assert level.restore(slot, key(1, 2, 3, 4, 5), 4) == 4
    assert (level.stats().hits, level.stats().restored_tokens, level.stats().entries) == (2, 7, 0)


def test_nothing_crosses_namespaces() -> None:
    level = ResidentLevel()
    slot = Slot(0, 100)
    holding(level, slot, 1, 2, 3, namespace="a")
    assert level.match(slot, key(1, 2, 3, namespace="b")) == 0
    assert level.restore(slot, key(1, 2, 3, 4, namespace="b"), 3) == 0
    assert slot.state.rows == 0


def test_every_change_is_a_new_epoch() -> None:
    level = ResidentLevel()
    slot = Slot(0, 100)
    seen = {slot.epoch}
    holding(level, slot, 1, 2)
    seen.add(slot.epoch)
    level.restore(slot, key(1), 1)
    seen.add(slot.epoch)
    level.drop(slot)
    seen.add(slot.epoch)
    assert len(seen) == 4


def test_a_conversation_that_does_not_match_its_rows_is_a_defect() -> None:
    slot = Slot(1, 100)
    slot.state.extend(3)
    with pytest.raises(ValueError, match="slot 1 holds 3 rows, not the 2 to be kept"):
        ResidentLevel().keep(slot, key(1, 2), 2)


def test_it_is_a_level() -> None:
    level: CacheLevel = ResidentLevel()
    assert level.stats().held_bytes == 0


def test_idle_conversations_go_by_age_and_never_one_in_use() -> None:
    level = ResidentLevel()
    slots = [Slot(i, 100) for i in range(4)]
    held = {0: 10, 1: 20, 2: 30, 3: 40}
    for slot, used in zip(slots, (3.0, 1.0, 2.0, 0.0), strict=True):
        holding(level, slot, 1, 2, 3)
        slot.last_used = used
    slots[3].claimed = True

    def give_back(slot: Slot) -> None:
        held[slot.id] = 0

    rung = IdleConversations(
        "idle",
        level=Level.SIDE_CONVERSATION,
        slots=slots,
        resident=level,
        committed=lambda i: held[i],
        give_back=give_back,
    )
    assert rung.held_bytes() == 60
    assert rung.reclaim(25) == 50  # slot 1, then slot 2
    assert held == {0: 10, 1: 0, 2: 0, 3: 40}
    assert [level.of(slot) is None for slot in slots] == [False, True, True, False]
    assert (slots[1].state.rows, slots[3].state.rows) == (0, 3)
    assert rung.reclaim(1000) == 10
    assert rung.held_bytes() == 0
