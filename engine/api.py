"""The seam between the engine and whoever embeds it: what HTTP needs of an engine, and of its model.

`engine.loop.Engine` implements `EnginePort`; tests implement it with scripted engines. All methods are safe from any
thread, and none waits for a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.counters import Ending
from engine.ledger.reader import LedgerReader
from engine.meters import MetersView
from engine.protocol import Health
from engine.request import EventSink, Request, RequestError


class Tokenizer(Protocol):
    """Text to token ids and back, built from the model's own file."""

    vocab_size: int
    eos_ids: frozenset[int]
    bos_id: int | None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. `special` lets the spellings of control tokens in `text` become those tokens (for
        rendered templates only; client text never gets it). Adds no token of its own."""
        ...

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of a raw completion prompt: `encode(text)` with the start token where the file asks for one."""
        ...

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, known at once: what is far too long need not be encoded."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; empty for a control token."""
        ...

    def token_text(self, token: int) -> str:
        """The token as a client is shown it in log-probabilities (control tokens by their spelling)."""
        ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation: its ids, and how many of them reach to the end of the first user message."""

    ids: tuple[int, ...]
    first_user_end: int


class ChatTemplate(Protocol):
    """The model's own chat template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and tokenise `messages` (role and string content each). Raises RequestError(400) with the
        template's own message where the template refuses them."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The loaded model as a dialect sees it. `template` None: chat is a 400 that says the model has none."""

    name: str
    created: int
    max_len: int
    tokenizer: Tokenizer
    template: ChatTemplate | None


class EnginePort(Protocol):
    """An engine, from outside."""

    @property
    def model(self) -> ServedModel | None:
        """None until the model has loaded."""
        ...

    def submit(self, request: Request, sink: EventSink) -> None:
        """Hand over a request. Raises RequestError at once where it can never run (too long, too large), or now
        cannot (`queue_full`, `loading`, `draining`); otherwise the sink hears everything, ending in Done or Failed."""
        ...

    def refuse(self, request_id: str, client: str, error: RequestError) -> None:
        """Count a request that was answered with `error` before it could be submitted."""
        ...

    def cancel(self, request_id: str) -> None:
        """The client left: stop every choice of the request within one chunk or one round. Unknown ids are ignored."""
        ...

    def end(self, request_id: str, error: RequestError, ending: Ending) -> None:
        """End the request as a leaving client would, but its sink hears why, and it is counted as `ending`. Unknown
        ids are ignored."""
        ...

    @property
    def ledger(self) -> LedgerReader | None:
        """Reads the requests that ended; None where no ledger is kept."""
        ...

    def health(self) -> Health:
        """The newest published snapshot."""
        ...

    def meters(self) -> MetersView:
        """What the engine measured of its own pace since its start."""
        ...

    def drain(self) -> bool:
        """Accept nothing more; what runs goes on. Whether it did not drain before."""
        ...

    def resume(self) -> bool:
        """Accept requests again after `drain`. Whether it was draining."""
        ...
