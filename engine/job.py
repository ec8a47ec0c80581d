"""A request inside the engine, and the sequences it runs as: one `Choice` a requested choice, each in its own slot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from engine.cache.level import CacheKey
from engine.output import TextStream
from engine.protocol import LaneState, WaitState
from engine.request import EventSink, Request, Waiting
from engine.sampling import Sampler
from engine.slot import Slot


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence running in a slot. `path` is the prompt and every generated token; the slot's valid rows are those
    of its first `slot.state.rows` tokens, so while decoding the last token of the path waits for its row."""

    job: Job
    index: int
    slot: Slot
    path: list[int]
    prompt_len: int
    cached: int
    max_tokens: int
    sampler: Sampler
    stream: TextStream
    started: float
    phase: LaneState = LaneState.PREFILLING
    yields: int = 0
    rounds: int = 0
    gave_way_to: int | None = None
    first_token: float | None = None

    @property
    def generated(self) -> int:
        return len(self.path) - self.prompt_len

    @property
    def unread(self) -> int:
        """Prompt tokens whose rows are not computed yet."""
        return max(0, self.prompt_len - self.slot.state.rows)


@dataclass(slots=True, eq=False)
class Job:
    """One request from its arrival to its last event. `pending` choices have no slot yet; `order` is its place by
    arrival."""

    request: Request
    sink: EventSink
    order: int
    arrived: float
    key: CacheKey
    pending: deque[int]
    running: list[Choice] = field(default_factory=list)
    waiting: Waiting | None = None
    waiting_since: float = 0.0
    home: int | None = None
    admitted: bool = False
    waited_for_memory: bool = False
    cached_tokens: int = 0
    max_tokens: int = 0
    completion_tokens: int = 0
    matches: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

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


def new_job(request: Request, sink: EventSink, order: int, now: float) -> Job:
    return Job(
        request=request,
        sink=sink,
        order=order,
        arrived=now,
        waiting_since=now,
        key=CacheKey(request.namespace, np.array(request.prompt, np.int32)),
        pending=deque(range(request.n)),
    )
