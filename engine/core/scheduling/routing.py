"""Which slot a request goes to, or why it waits: pure functions over frozen views.

In order, among the slots whose window fits:

1. the slot that holds this conversation (its home): the match reaches past the first user message, in the same
   namespace. A busy home is waited for as a preference, up to a limit, and never by a repetition of the very prompt
   that runs there, which gains nothing by waiting;
2. an empty slot;
3. the slot used least recently.

A common head that ends before the first user message does (a client's system prompt) is reused where it lies but
never chooses the slot. A prompt without messages continues what a slot holds where it starts with all of the prompt
served there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.protocol import WaitState


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot as one request sees it. Lengths in tokens.

    `held` tokens of some conversation lie there (of the running prompt where it is busy), `held_prompt` of them were
    the prompt; `match` is how many the request shares, 0 across namespaces. `last_used` orders slots by their last
    use, larger is later.
    """

    slot: int
    window: int
    busy: bool
    held: int
    held_prompt: int
    match: int
    last_used: float


@dataclass(frozen=True, slots=True)
class RouteView:
    """One request and the slots. `max_tokens` None means the room left. `waited_s` counts from its arrival;
    `prefers_home` is False for a further choice of a request that runs already."""

    prompt: int
    first_user_end: int
    max_tokens: int | None
    waited_s: float
    slots: tuple[SlotView, ...]
    min_room: int
    slot0_wait_s: float
    home_wait_s: float
    prefers_home: bool = True


class Rule(StrEnum):
    """Why a slot was chosen."""

    HOME = "home"
    EMPTY = "empty"
    LEAST_RECENT = "least recently used"


@dataclass(frozen=True, slots=True)
class Place:
    """Run here. `max_tokens` is what will be served; `preference_expired` is the busy home it stopped waiting for, if
    any; `shared_head` the tokens shared with the slot's former conversation without continuing it."""

    slot: int
    rule: Rule
    max_tokens: int
    home: int | None
    preference_expired: int | None
    shared_head: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. `home` is the slot waited for, `limit_s` how long at most since the request came (None without a
    bound); `side_window` the window that the request does not fit, where it waits for slot 0."""

    state: WaitState
    home: int | None = None
    limit_s: float | None = None
    slots: int = 0
    side_window: int = 0


Decision = Place | Wait


def route(view: RouteView) -> Decision:
    """Decide on one request. Same view, same decision. Some slot must fit (see `fits`)."""
    fitting = tuple(s for s in view.slots if fits(view, s))
    home = _home(view, fitting)
    preference_expired = None
    if home is not None:
        if not home.busy:
            return _place(view, home, Rule.HOME, home.slot, None)
        limit = view.slot0_wait_s if home.slot == 0 else view.home_wait_s
        if view.prefers_home and view.waited_s < limit:
            return Wait(WaitState.HOME, home=home.slot, limit_s=limit, slots=len(view.slots))
        preference_expired = home.slot
    home_slot = None if home is None else home.slot
    free = [s for s in fitting if not s.busy]
    empty = next((s for s in free if s.held == 0), None)
    if empty is not None:
        return _place(view, empty, Rule.EMPTY, home_slot, preference_expired)
    if free:
        oldest = min(free, key=lambda s: (s.last_used, s.slot))
        return _place(view, oldest, Rule.LEAST_RECENT, home_slot, preference_expired)
    if len(fitting) < len(view.slots) and all(s.slot == 0 for s in fitting):
        side = max(s.window for s in view.slots if s.slot != 0)
        return Wait(WaitState.SLOT0, home=0, slots=len(view.slots), side_window=side)
    return Wait(WaitState.SLOT, slots=len(view.slots))


def fits(view: RouteView, slot: SlotView) -> bool:
    """Whether the slot's window holds the prompt and enough of the answer: all of it, or the minimum room. The slot
    with the largest window takes every prompt that leaves room for one token."""
    room = slot.window - view.prompt
    if room < 1:
        return False
    if slot.window >= max(s.window for s in view.slots):
        return True
    return room >= view.min_room or (view.max_tokens is not None and view.max_tokens <= room)


def continues(view: RouteView, slot: SlotView) -> bool:
    """Whether the request continues the conversation that the slot holds."""
    if view.first_user_end > 0:
        return slot.match > view.first_user_end
    return 0 < slot.held_prompt <= slot.match


def _home(view: RouteView, fitting: tuple[SlotView, ...]) -> SlotView | None:
    holding = [s for s in fitting if continues(view, s) and not (s.busy and _repeats(view, s))]
    # The longest match; of equal ones a free slot, then the lowest.
    return max(holding, key=lambda s: (s.match, not s.busy, -s.slot), default=None)


def _repeats(view: RouteView, slot: SlotView) -> bool:
    return slot.match == view.prompt == slot.held_prompt


def _place(view: RouteView, slot: SlotView, rule: Rule, home: int | None, preference_expired: int | None) -> Place:
    room = slot.window - view.prompt
    return Place(
        slot=slot.slot,
        rule=rule,
        max_tokens=room if view.max_tokens is None else min(view.max_tokens, room),
        home=home,
        preference_expired=preference_expired,
        shared_head=0 if rule is Rule.HOME else slot.match,
    )
