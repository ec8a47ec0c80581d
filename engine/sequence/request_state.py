"""A request inside the engine, and the sequences it runs as: one a requested choice, each in its own slot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from engine.execution.sampling import Sampler
from engine.protocol import LaneState, WaitState
from engine.request import EventSink, Request, Waiting
from engine.sequence.cache_key import CacheKey
from engine.sequence.text_stream import TextStream

MAIN = "main"
SIDE = "side"


@dataclass(slots=True)
class SequenceState:
    """KV rows `[0, rows)` of a slot, valid now."""

    slot: int
    window: int
    rows: int = 0

    def rewind(self, rows: int) -> None:
        """Keep the first `rows` rows alone."""
        if not 0 <= rows <= self.rows:
            raise ValueError(f"slot {self.slot}: cannot keep {rows} of {self.rows} rows")
        self.rows = rows

    def extend(self, rows: int) -> None:
        """A chain of `rows` rows was computed behind the valid ones."""
        self.rows += rows


@dataclass(slots=True)
class Slot:
    """One slot of the engine. `last_used` is the clock when its last request ended; `epoch` grows whenever what it
    holds changes, so that whoever compared a prompt with it knows when to compare again. `claimed` while a request is
    being admitted to it: what it holds is not up for reclaim then."""

    id: int
    window: int
    state: SequenceState = field(init=False)
    running: Sequence | None = None
    claimed: bool = False
    last_used: float = 0.0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.state = SequenceState(self.id, self.window)

    @property
    def kind(self) -> str:
        return MAIN if self.id == 0 else SIDE


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence running in a slot. `path` is the prompt and every generated token; the slot's valid rows are those
    of its first `slot.state.rows` tokens, so while decoding the last token of the path waits for its row."""

    req: RequestState
    index: int
    slot: Slot
    token_ids: list[int]
    prompt_len: int
    cached: int
    max_tokens: int
    sampler: Sampler
    stream: TextStream
    started: float
    phase: LaneState = LaneState.PREFILLING
    yields: int = 0
    rounds: int = 0
    first_token: float | None = None
    last_token: float | None = None
    worst_gap_s: float | None = None

    def token_came(self, now: float) -> float | None:
        """Note a token at `now`; the pause since the one before, None for the first."""
        before, self.last_token = self.last_token, now
        if before is None:
            self.first_token = now
            return None
        gap = now - before
        if self.worst_gap_s is None or gap > self.worst_gap_s:
            self.worst_gap_s = gap
        return gap

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def remaining_prompt(self) -> int:
        """Prompt tokens whose rows are not computed yet."""
        return max(0, self.prompt_len - self.slot.state.rows)


@dataclass(slots=True, eq=False)
class RequestState:
    """One request from its arrival to its last event. `pending` sequences have no slot yet; `order` is its place by
    arrival. `slot`, `route` and `admitted_at` are its first sequence's; the token times and the longest pause are those
    of the sequences that ended."""

    request: Request
    sink: EventSink
    order: int
    arrived: float
    key: CacheKey
    pending: deque[int]
    running: list[Sequence] = field(default_factory=list)
    waiting: Waiting | None = None
    waiting_since: float = 0.0
    home: int | None = None
    admitted: bool = False
    waited_for_memory: bool = False
    cached_tokens: int = 0
    max_tokens: int = 0
    completion_tokens: int = 0
    slot: int | None = None
    route: str | None = None
    admitted_at: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    worst_gap_s: float | None = None
    matches: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    def sequence_ended(self, seq: Sequence) -> None:
        """Take over what `seq` was measured by."""
        self.completion_tokens += seq.generated
        self.first_token = _least(self.first_token, seq.first_token)
        self.last_token = _most(self.last_token, seq.last_token)
        self.worst_gap_s = _most(self.worst_gap_s, seq.worst_gap_s)

    def wait(self, state: WaitState, reason: str, home: int | None, now: float) -> None:
        """The request waits, for this reason; its client hears of each change."""
        waiting = Waiting(state, reason)
        if waiting == self.waiting:
            return
        if self.waiting is None or self.waiting.state is not state:
            self.waiting_since = now
        self.waiting = waiting
        self.home = home
        self.sink.put(waiting)


def _least(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _most(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def new_request_state(request: Request, sink: EventSink, order: int, now: float) -> RequestState:
    return RequestState(
        request=request,
        sink=sink,
        order=order,
        arrived=now,
        waiting_since=now,
        key=CacheKey(request.namespace, np.array(request.prompt, np.int32)),
        pending=deque(range(request.n)),
    )
