"""What a request is, and what its client hears: the types between a dialect, the loop and the sampler.

A request is not a sequence: it asks for `n` choices, each of which runs as one sequence in a slot of its own.
Nothing here knows HTTP or any dialect, and nothing imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Protocol

from engine.protocol import WaitState


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Ending(Enum):
    """How a request ended; each request is counted once."""

    SERVED = auto()
    REFUSED = auto()
    ERROR = auto()
    TIMEOUT = auto()
    ABANDONED = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a token. A temperature below 1e-5 or `top_k` 1 is greedy; `top_k` 0 and `top_p` 1 keep
    everything.

    The noise of a sampled token is keyed by (seed, choice, position) alone, so a seeded request writes the same
    text whatever runs beside it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """One client request, already rendered to tokens.

    `first_user_end` is the number of prompt tokens up to and including the first user message (0 where the prompt
    has no messages): a resident conversation is continued only where the match reaches past it. `namespace`
    isolates caches between API keys. `max_tokens` None means the room left. `logprobs` is the number of
    alternatives to report for each token (0 reports the chosen token alone, None reports nothing). A token of
    `stop_ids` ends the answer as the end token does, whatever `ignore_eos` says. `model` is the name the client asked
    for: recorded and shown, never a condition.
    """

    id: str
    client: str
    prompt: tuple[int, ...]
    first_user_end: int = 0
    max_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stream: bool = False
    logprobs: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token with its log-probability and the best alternatives, best first (natural log)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request waits; `reason` is one sentence with numbers. Sent on each change."""

    state: WaitState
    reason: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first choice has a slot. `max_tokens` is what will be served; `cut_from` what was asked, where it was cut."""

    slot: int
    cached_tokens: int
    max_tokens: int
    cut_from: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens read so far."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Text:
    """Text of one choice that may be sent: whole characters, no part of a stop string. `text` may be empty when
    only log-probabilities are ready; `tokens` counts the tokens that this piece accounts for."""

    choice: int
    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice is complete; nothing more of it follows. `stop` is the stop string that ended it, if one did."""

    choice: int
    reason: FinishReason
    completion_tokens: int
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """All choices are complete. The last event of a request that did not fail."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without an answer. The last event."""

    error: RequestError


Event = Waiting | Admitted | PrefillProgress | Text | Finished | Done | Failed


class EventSink(Protocol):
    """Where the engine thread delivers a request's events. `put` never blocks and never raises."""

    def put(self, event: Event) -> None: ...


class RequestError(Exception):
    """A request that cannot be served, with the words and the code that its client gets.

    `status` is the HTTP status that fits, `code` the contract's short word (`queue_full`, `too_large`, `loading`,
    `draining`, `queue_timeout`, `memory_wait_timeout`, `context_length_exceeded`, ...), `param` the field at fault
    (a path such as `messages[2].content`), `retry_after` seconds.
    """

    def __init__(
        self, message: str, *, status: int, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after
