"""Which slot a request goes to: each rule as a table of situations, and sentences for every wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.scheduling import reasons
from engine.core.scheduling.routing import Place, RouteView, Rule, SlotView, Wait, continues, fits, route
from engine.protocol import WaitState

WINDOW = 1000
SIDE = 400


def slot(
    i: int,
    *,
    window: int = WINDOW,
    busy: bool = False,
    held: int = 0,
    prompt: int = 0,
    match: int = 0,
    used: float = 0.0,
) -> SlotView:
    return SlotView(i, window, busy, held, prompt or held, match, used)


def view(
    *slots: SlotView, prompt: int = 100, user_end: int = 40, max_tokens: int | None = 50, waited: float = 0.0
) -> RouteView:
    return RouteView(
        prompt=prompt,
        first_user_end=user_end,
        max_tokens=max_tokens,
        waited_s=waited,
        slots=slots,
        min_room=100,
        slot0_wait_s=3.0,
        home_wait_s=2.0,
    )


HOLDS = {"held": 90, "prompt": 60, "match": 80}
PLACES = [
    ("all empty: the lowest", view(slot(0), slot(1)), 0, Rule.EMPTY),
    ("slot 0 busy: the next", view(slot(0, busy=True, held=50), slot(1)), 1, Rule.EMPTY),
    ("home before empty", view(slot(0), slot(1, **HOLDS)), 1, Rule.HOME),
    ("the longest match is home", view(slot(0, held=90, match=50), slot(1, **HOLDS)), 1, Rule.HOME),
    ("empty before least recent", view(slot(0, held=50, used=1), slot(1)), 1, Rule.EMPTY),
    ("least recent", view(slot(0, held=50, used=9), slot(1, held=50, used=5)), 1, Rule.LEAST_RECENT),
    (
        "a head shared does not choose",
        view(slot(0, held=50, match=40, used=9), slot(1, held=50, used=5)),
        1,
        Rule.LEAST_RECENT,
    ),
    ("a head shared before an empty slot", view(slot(0, held=50, match=40), slot(1)), 1, Rule.EMPTY),
    (
        "a repetition of what runs takes another slot",
        view(slot(0, busy=True, held=100, match=100), slot(1)),
        1,
        Rule.EMPTY,
    ),
    (
        "a busy home given up",
        view(slot(0, busy=True, **HOLDS), slot(1, held=9, used=3), waited=3.0),
        1,
        Rule.LEAST_RECENT,
    ),
    (
        "raw prompt: continues all of the prompt held",
        view(slot(0), slot(1, held=90, prompt=60, match=60), user_end=0),
        1,
        Rule.HOME,
    ),
    (
        "raw prompt: a common start is nothing",
        view(slot(0, held=90, prompt=60, match=59), slot(1), user_end=0),
        1,
        Rule.EMPTY,
    ),
]


@pytest.mark.parametrize(("given", "where", "rule"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_places(given: RouteView, where: int, rule: Rule) -> None:
    decision = route(given)
    assert isinstance(decision, Place)
    assert (decision.slot, decision.rule) == (where, rule)


def test_a_home_in_use_is_waited_for_no_longer_than_its_limit() -> None:
    for home, limit in ((0, 3.0), (1, 2.0)):
        slots = [slot(0), slot(1), slot(2)]
        slots[home] = slot(home, busy=True, **HOLDS)
        early = route(view(*slots, waited=limit - 0.01))
        assert early == Wait(WaitState.HOME, home=home, limit_s=limit, slots=3)
        late = route(view(*slots, waited=limit))
        assert isinstance(late, Place)
        assert (late.home, late.preference_expired) == (home, home)
        assert late.slot != home


def test_a_further_choice_never_waits_for_home() -> None:
    decision = route(replace(view(slot(0, busy=True, **HOLDS), slot(1)), prefers_home=False))
    assert isinstance(decision, Place)
    assert decision.slot == 1


def test_all_busy_waits_for_any() -> None:
    decision = route(view(slot(0, busy=True, held=5), slot(1, busy=True, held=5), slot(2, busy=True, held=5)))
    assert isinstance(decision, Wait)
    assert decision.state is WaitState.SLOT
    assert reasons.waiting(decision) == "all 3 slots are busy"
    one = route(view(slot(0, busy=True, held=5)))
    assert isinstance(one, Wait)
    assert reasons.waiting(one) == "the only slot is busy"


def test_too_long_for_a_side_slot_waits_for_slot_0() -> None:
    decision = route(view(slot(0, busy=True, held=5), slot(1, window=SIDE), prompt=350, max_tokens=None))
    assert isinstance(decision, Wait)
    assert decision.state is WaitState.SLOT0
    assert reasons.waiting(decision) == "too long for a side slot (400 tokens); waits for slot 0"


def test_the_wait_for_home_names_slot_and_limit() -> None:
    decision = route(view(slot(0), slot(1, busy=True, **HOLDS)))
    assert isinstance(decision, Wait)
    assert reasons.waiting(decision) == "waits up to 2 s for slot 1, which holds its conversation"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fit"),
    [
        (300, None, True),  # room 100 = the minimum room
        (301, None, False),
        (301, 99, True),  # all of the answer fits
        (301, 100, False),
        (399, 1, True),
        (400, 1, False),  # no room for a token
        (100, 5000, True),  # cut to the room
    ],
)
def test_what_fits_a_side_slot(prompt: int, max_tokens: int | None, fit: bool) -> None:
    given = view(slot(0), slot(1, window=SIDE), prompt=prompt, max_tokens=max_tokens)
    assert fits(given, given.slots[1]) is fit
    assert fits(given, given.slots[0])


def test_max_tokens_is_cut_to_the_room() -> None:
    side = (slot(0, busy=True, held=5), slot(1, window=SIDE))
    for asked, served in ((5000, 300), (None, 300), (7, 7)):
        decision = route(view(*side, prompt=100, max_tokens=asked))
        assert isinstance(decision, Place)
        assert (decision.slot, decision.max_tokens) == (1, served)


def test_a_home_that_was_outgrown_is_none() -> None:
    decision = route(view(slot(0), slot(1, window=SIDE, held=380, match=380), prompt=395, max_tokens=50))
    assert isinstance(decision, Place)
    assert (decision.slot, decision.rule) == (0, Rule.EMPTY)


def test_the_shared_head_is_reported_where_it_is_reused() -> None:
    decision = route(view(slot(0, held=50, match=40)))
    assert isinstance(decision, Place)
    assert (decision.rule, decision.shared_head) == (Rule.LEAST_RECENT, 40)


def test_a_match_must_reach_past_the_first_user_message() -> None:
    given = view(slot(0, held=90, match=40), slot(1, held=90, match=41))
    assert not continues(given, given.slots[0])
    assert continues(given, given.slots[1])
