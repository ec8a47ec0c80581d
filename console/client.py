"""The only file of the console that asks engines, over the connections of `wire.py`: what is asked, what the answer is,
and in one sentence what went wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from console.asks import LOG_PAGE, Act, RequestsQuery, Unknown, Unreachable
from console.wire import Answer, Wire, WireError
from engine.protocol import CONTRACT, ActionReply, Health, LedgerRow, LogPage, RequestsPage, decode_health

__all__ = ["BadAddress", "HealthClient", "Unreachable"]

# Seconds for a whole answer, not for each piece of it.
_SNAPSHOT_S = 2.0
# A search through a long ledger takes its time, and an engine acts between two rounds.
_DESK_S = 10.0
# Far above any answer: an address may be that of something that never stops sending.
_MOST_BYTES = 64 << 20
_WANTS_TOKEN = "the rest wants a token, set TANDEM_METRICS_TOKEN"
_WANTS_ADMIN = "set TANDEM_ADMIN_TOKEN to the engine's admin token"
_NO_LEDGER = "this engine has no ledger"
_NO_LOG = "this engine keeps no log to show"
_NO_ACTIONS = "this engine takes no actions"

T = TypeVar("T")


class BadAddress(ValueError):
    """The address given is none that can be asked; the text names it and says what is wrong."""


class Tap(Protocol):
    """Is told of everything that a client gets: bodies as they came, and attempts that brought nothing."""

    def snapshot(self, url: str, body: bytes) -> None: ...

    def missed(self, url: str, reason: str) -> None: ...


class HealthClient:
    """Kept-alive connections to one engine. Use as an async context manager; raises BadAddress."""

    def __init__(self, url: str, tap: Tap | None = None) -> None:
        self.url = url.rstrip("/")
        self._tap = tap
        try:
            # Proxies of the environment are for the outside world; an engine is asked directly.
            self._wire = Wire(self.url)
        except ValueError as error:
            raise BadAddress(f"--url {url}: {error}") from None
        self._reading = _reading()

    async def fetch(self) -> Health:
        """The engine's newest snapshot, whatever its status code; raises Unreachable."""
        return (await self.fetch_with_body())[0]

    async def fetch_with_body(self) -> tuple[Health, bytes]:
        """The snapshot, and the bytes in which it came; raises Unreachable."""
        try:
            health, body = await self._ask()
        except Unreachable as error:
            if self._tap is not None:
                self._tap.missed(self.url, str(error))
            raise
        if self._tap is not None:
            self._tap.snapshot(self.url, body)
        return health, body

    async def _ask(self) -> tuple[Health, bytes]:
        response = await self._send("GET", "/health", self._reading, _SNAPSHOT_S)
        if response.status_code in (401, 403):
            raise Unreachable(f"status {response.status_code}: {_WANTS_TOKEN}")
        try:
            return decode_health(response.content), response.content
        except msgspec.MsgspecError as error:
            if status := _status_alone(response.content):
                raise Unreachable(f"it says only “{status}”: {_WANTS_TOKEN}") from None
            raise Unreachable(f"status {response.status_code}, not a {CONTRACT} body: {error}") from error

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage:
        """A page of the ledger, newest first; raises Unreachable, or Unknown where the engine has no ledger."""
        given = {"limit": str(query.limit), "q": query.text, "before": query.before or ""}
        return await self._read("/admin/requests", given, RequestsPage, _NO_LEDGER)

    async def fetch_request(self, request_id: str) -> LedgerRow:
        """One request's row; raises Unreachable, or Unknown where the ledger has none of that id."""
        return await self._read(f"/admin/requests/{quote(request_id, safe='')}", {}, LedgerRow, _NO_LEDGER)

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage:
        """Log lines later than number `after`, at most `limit`; raises Unreachable, or Unknown without a log."""
        return await self._read("/admin/log", {"after": str(after), "limit": str(limit)}, LogPage, _NO_LOG)

    async def act(self, act: Act) -> ActionReply:
        """Have the engine do something; a refusal is a reply too. Raises Unreachable where no answer came."""
        response = await self._send("POST", act.path, _acting(), _DESK_S)
        try:
            return msgspec.json.decode(response.content, type=ActionReply)
        except msgspec.MsgspecError:
            why, code = _complaint(response)
        if response.status_code in (401, 403):
            why = f"{why}; {_WANTS_ADMIN}"
        elif code == "unknown_route":
            why = _NO_ACTIONS
        return ActionReply(done=False, message=why)

    async def _read(self, path: str, given: Mapping[str, str], kind: type[T], missing: str) -> T:
        """The body of a GET as `kind`; `missing` says what an engine lacks that does not know the path."""
        asked = urlencode({name: value for name, value in given.items() if value}, errors="replace")
        response = await self._send("GET", f"{path}?{asked}" if asked else path, self._reading, _DESK_S)
        if response.status_code == 200:
            try:
                return msgspec.json.decode(response.content, type=kind)
            except msgspec.MsgspecError as error:
                raise Unreachable(f"an answer of another shape: {error}") from error
        why, code = _complaint(response)
        if response.status_code == 404:
            raise Unknown(why if code not in ("", "unknown_route") else missing)
        if response.status_code in (401, 403):
            why = f"{why}; {_WANTS_TOKEN}"
        raise Unreachable(why)

    async def _send(self, method: str, path: str, headers: Mapping[str, str], within_s: float) -> Answer:
        try:
            async with asyncio.timeout(within_s):
                return await self._wire.ask(method, path, headers, _MOST_BYTES)
        except TimeoutError:
            raise Unreachable(f"no answer within {within_s:.0f} s") from None
        except WireError as error:
            raise Unreachable(str(error)) from error

    async def __aenter__(self) -> HealthClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()


def _reading() -> dict[str, str]:
    # The one that opens less comes first.
    return _bearer(os.environ.get("TANDEM_METRICS_TOKEN") or os.environ.get("TANDEM_ADMIN_TOKEN"))


def _acting() -> dict[str, str]:
    return _bearer(os.environ.get("TANDEM_ADMIN_TOKEN"))


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


class _Detail(msgspec.Struct):
    message: str
    code: str = ""


class _Error(msgspec.Struct):
    error: _Detail


def _complaint(response: Answer) -> tuple[str, str]:
    """What an error says, and its code; where it says nothing, its status."""
    try:
        detail = msgspec.json.decode(response.content, type=_Error).error
    except msgspec.MsgspecError:
        return f"status {response.status_code}", ""
    return detail.message, detail.code


def _status_alone(body: bytes) -> str:
    """The status of a body that holds nothing else: what an engine tells to whom it does not know."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.MsgspecError:
        return ""
    return fields["status"] if set(fields) == {"status"} else ""
