"""What can be asked of an engine: the interface of a client, its queries and actions, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import quote

from engine.protocol import ActionReply, Health, LedgerRow, LogPage, RequestsPage

PAGE = 50
LOG_PAGE = 500


class Unreachable(Exception):
    """No usable answer came back; the text says why, in words for the screen."""


class NotFound(Unreachable):
    """The engine answered that there is no such thing: no such route, or no such request."""


def segment(name: str) -> str:
    """The name quoted as one segment of a URL path."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if name in (".", "..") else quoted


@dataclass(frozen=True)
class RequestsQuery:
    """One page of the ledger: rows that match `text` (empty: all), those before the row with the id `before`."""

    text: str = ""
    before: str | None = None
    limit: int = PAGE


class Verb(StrEnum):
    """What an operator can make an engine do."""

    CANCEL = "cancel"
    LOAD = "load"
    UNLOAD = "unload"
    DRAIN = "drain"
    RESUME = "resume"


@dataclass(frozen=True)
class EngineAction:
    """An action on one target: a request's id for `CANCEL`, a role's name for `LOAD` and `UNLOAD`, else the engine."""

    verb: Verb
    target: str

    @property
    def path(self) -> str:
        """The route of the action."""
        match self.verb:
            case Verb.DRAIN | Verb.RESUME:
                return f"/admin/{self.verb}"
            case Verb.CANCEL:
                kind = "requests"
            case Verb.LOAD | Verb.UNLOAD:
                kind = "roles"
        return f"/admin/{kind}/{segment(self.target)}/{self.verb}"


class EngineApi(Protocol):
    """A client of one engine at `url`.

    The fetches raise Unreachable, or NotFound where the engine lacks what is asked for. `act` raises Unreachable where
    no answer came; a refusal is a reply.
    """

    url: str

    async def fetch(self) -> Health: ...

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage: ...

    async def fetch_request(self, request_id: str) -> LedgerRow: ...

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage: ...

    async def act(self, action: EngineAction) -> ActionReply: ...
