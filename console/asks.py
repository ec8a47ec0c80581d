"""What the console asks of an engine beside `/health`, and what it may be told instead of an answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol
from urllib.parse import quote

import msgspec

from engine.protocol import ActionReply, LedgerRow, LogPage, RequestsPage

PAGE = 50
LOG_PAGE = 500


class Unreachable(Exception):
    """No usable answer came back; the text says why, in words for the screen."""


class Unknown(Unreachable):
    """The engine answered that there is no such thing: no such route, or no such request."""


def segment(name: str) -> str:
    """The name as one step of a path, which it cannot leave."""
    step = quote(name, safe="")
    return step.replace(".", "%2E") if name in (".", "..") else step


class RequestsQuery(msgspec.Struct, frozen=True):
    """One page of the ledger: rows that fit `text` (empty: all), those before the row with the id `before`."""

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


class Act(msgspec.Struct, frozen=True):
    """One action on one target: a request's id for `CANCEL`, a role's name for `LOAD` and `UNLOAD`, else the engine."""

    verb: Verb
    target: str

    @property
    def path(self) -> str:
        """What is asked of the engine to have it done."""
        match self.verb:
            case Verb.DRAIN | Verb.RESUME:
                return f"/admin/{self.verb}"
            case Verb.CANCEL:
                kind = "requests"
            case Verb.LOAD | Verb.UNLOAD:
                kind = "roles"
        return f"/admin/{kind}/{segment(self.target)}/{self.verb}"


class Desk(Protocol):
    """Answers these questions. The first three raise Unreachable, or Unknown where the engine lacks what is asked for;
    `act` raises Unreachable where no answer came, and otherwise tells what was done or why not."""

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage: ...

    async def fetch_request(self, request_id: str) -> LedgerRow: ...

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage: ...

    async def act(self, act: Act) -> ActionReply: ...
