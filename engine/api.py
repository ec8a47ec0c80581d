"""The seam between the engine and whoever embeds it: what HTTP needs of an engine, and of its model.

`engine.core.loop.Engine` implements `EnginePort`; tests implement it with scripted engines. All methods are safe from
any thread, and none waits for a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.models.text.interfaces import ChatTemplate, Tokenizer
from engine.process.ledger.reader import LedgerReader
from engine.protocol import Health
from engine.request import Ending, EventSink, Request, RequestError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The loaded model as a dialect sees it. `template` None: chat is a 400 that says the model has none."""

    name: str
    created: int
    max_len: int
    tokenizer: Tokenizer
    template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class HistogramView:
    """Observations by upper bound: `counts[i]` are at most `bounds[i]` and over the bound before, the last count is
    over all of them. `total` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class MetersView:
    """All times in seconds. `rounds` has one entry for each number of slots that decoded together, ascending."""

    queue: HistogramView
    gaps: HistogramView
    rounds: tuple[tuple[int, HistogramView], ...]


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
