"""The console's only network code: what an engine is asked, what the answer is, and in one sentence what went wrong.

The first snapshot is asked for through the standard library, so that the first figures need not wait for httpx: its
import, a client and a connection take as long as a fifth of the start. Where that brings none, httpx is asked at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from console.asks import LOG_PAGE, Act, RequestsQuery, Unknown, Unreachable, segment
from engine.protocol import CONTRACT, ActionReply, Health, LedgerRow, LogPage, RequestsPage, decode_health

if TYPE_CHECKING:
    import httpx

__all__ = ["BadAddress", "HealthClient", "Unreachable"]

# Seconds for a whole answer, not for each piece of it.
_SNAPSHOT_S = 2.0
# A search through a long ledger takes its time, and an engine acts between two rounds.
_DESK_S = 10.0
# Far above any answer: an address may be that of something that never stops sending.
_MOST_BYTES = 64 << 20
_SENT = {"User-Agent": "tandem-console", "Accept-Encoding": "identity"}
_WANTS_TOKEN = "the rest wants a token, set TANDEM_METRICS_TOKEN"
_WANTS_ADMIN = "set TANDEM_ADMIN_TOKEN to the engine's admin token"
_NO_LEDGER = "this engine has no ledger"
_NO_LOG = "this engine keeps no log to show"
_NO_ACTIONS = "this engine takes no actions"
_DROPPED = "disconnected without an answer"
_LATE = "no answer within {:.0f} s"
_CUT = "disconnected before its answer ended"

T = TypeVar("T")


class BadAddress(ValueError):
    """The address given is none that can be asked; the text names it and says what is wrong."""


class Tap(Protocol):
    """Is told of everything that a client gets: bodies as they came, and attempts that brought nothing."""

    def snapshot(self, url: str, body: bytes) -> None: ...

    def missed(self, url: str, reason: str) -> None: ...


class HealthClient:
    """Kept-alive connections to one engine, through the owner's socket where `socket_path` names it. Use as an async
    context manager; raises BadAddress."""

    def __init__(self, url: str, tap: Tap | None = None, socket_path: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._socket_path = socket_path
        self._tap = tap
        try:
            self._base = _base(self.url)
        except ValueError as error:
            raise BadAddress(f"--url {url}: {error}") from None
        self._http: httpx.AsyncClient | None = None
        self._snapshot: httpx.Request | None = None
        self._answered = False
        self._asked = False

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
        asked, self._asked = self._asked, True
        response = None if asked else await _first(self._base, _reading(), self._socket_path)
        if response is None:
            client = self._reader()
            if self._snapshot is None:
                self._snapshot = _question(client, "GET", f"{self._base}/health")
            response = await self._get(client, self._snapshot, _SNAPSHOT_S)
        if response.status_code in (401, 403) or not response.content:
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
        return await self._read(f"/admin/requests/{segment(request_id)}", {}, LedgerRow, _NO_LEDGER)

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage:
        """Log lines later than number `after`, at most `limit`; raises Unreachable, or Unknown without a log."""
        return await self._read("/admin/log", {"after": str(after), "limit": str(limit)}, LogPage, _NO_LOG)

    async def act(self, act: Act) -> ActionReply:
        """Have the engine do something; a refusal is a reply too. Raises Unreachable where no answer came."""
        # Over a connection of its own: a kept one may have ended unseen, and an order must not be sent twice.
        async with _opened(self._base, _acting(), self._socket_path) as client:
            response = await _send(client, _question(client, "POST", self._base + act.path), _DESK_S)
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
        client = self._reader()
        question = _question(client, "GET", f"{self._base}{path}?{asked}" if asked else self._base + path)
        response = await self._get(client, question, _DESK_S)
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

    def _reader(self) -> httpx.AsyncClient:
        """The client whose connections are kept for all questions that change nothing."""
        if self._http is None:
            self._http = _opened(self._base, _reading(), self._socket_path)
        return self._http

    async def _get(self, client: httpx.AsyncClient, question: httpx.Request, within_s: float) -> _Answer:
        """Ask, once more where it may be that a kept connection had ended unseen."""
        kept = self._answered
        try:
            answer = await _send(client, question, within_s)
        except _Dropped:
            if not kept:
                raise
            answer = await _send(client, question, within_s)
        self._answered = True
        return answer

    async def __aenter__(self) -> HealthClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()


def _reading() -> dict[str, str]:
    # The one that opens less comes first.
    return _bearer(os.environ.get("TANDEM_METRICS_TOKEN") or os.environ.get("TANDEM_ADMIN_TOKEN"))


def _acting() -> dict[str, str]:
    return _bearer(os.environ.get("TANDEM_ADMIN_TOKEN"))


def _bearer(token: str | None) -> dict[str, str]:
    if token and not (token.isascii() and token.isprintable()):
        raise Unreachable("the token (TANDEM_METRICS_TOKEN or TANDEM_ADMIN_TOKEN) is no printable ASCII on one line")
    return {"Authorization": f"Bearer {token}"} if token else {}


@dataclass(frozen=True)
class _Answer:
    """A whole answer: its status code and its body."""

    status_code: int
    content: bytes


class _Dropped(Unreachable):
    """The connection ended before an answer began."""


def _base(url: str) -> str:
    """What every question's address begins with; raises ValueError for what is no address of an engine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000")
    # Name servers are asked for this form; a name that has none must not come so far.
    parts.hostname.encode("idna")
    path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
    return f"{parts.scheme}://{parts.netloc}{path}"


async def _first(base: str, headers: Mapping[str, str], socket_path: str | None) -> _Answer | None:
    """The answer to a client's first question for a snapshot; None where none came and another attempt may say why."""
    parts = urlsplit(base)
    if parts.scheme != "http" or "@" in parts.netloc:
        return None
    came: Future[_Answer | None] = Future()
    came.set_running_or_notify_cancel()
    # A thread that nobody waits for: one of the loop's own would hold up the end of the console.
    Thread(target=lambda: came.set_result(_plainly(parts, headers, socket_path)), daemon=True).start()
    try:
        async with asyncio.timeout(_SNAPSHOT_S):
            return await asyncio.wrap_future(came)
    except TimeoutError:
        raise Unreachable(_LATE.format(_SNAPSHOT_S)) from None


def _plainly(parts: SplitResult, headers: Mapping[str, str], socket_path: str | None) -> _Answer | None:
    try:
        with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=_SNAPSHOT_S)) as connection:
            if socket_path is not None:
                # The connection opens none of its own where it has one.
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(_SNAPSHOT_S)
                connection.sock.connect(socket_path)
            connection.request("GET", f"{parts.path}/health", headers={**_SENT, **headers, "Connection": "close"})
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES + 1)
    except (OSError, HTTPException, ValueError):
        return None
    return _Answer(answer.status, body) if len(body) <= _MOST_BYTES else None


def _opened(base: str, headers: Mapping[str, str], socket_path: str | None) -> httpx.AsyncClient:
    """A client that asks directly, whatever proxies the environment names: those are for the outside world. Through the
    socket at `socket_path` where there is one.

    A token wins over a name in the address, which httpx would put in its place.
    """
    import httpx

    # The box's own certificates, and read only where they are needed: that takes as long as a frame.
    checked = ssl.create_default_context() if base.startswith("https:") else False
    auth = httpx.Auth() if "Authorization" in headers else None
    way = httpx.AsyncHTTPTransport(uds=socket_path, verify=checked)
    return httpx.AsyncClient(headers={**_SENT, **headers}, auth=auth, timeout=None, trust_env=False, transport=way)


def _question(client: httpx.AsyncClient, method: str, url: str) -> httpx.Request:
    import httpx

    try:
        return client.build_request(method, url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"no such address: {error}") from None


async def _send(client: httpx.AsyncClient, question: httpx.Request, within_s: float) -> _Answer:
    """The whole answer to a question without a body; raises Unreachable."""
    import httpx

    begun = False
    try:
        async with asyncio.timeout(within_s):
            response = await client.send(question, stream=True)
            begun = True
            try:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise Unreachable(f"an answer of more than {_MOST_BYTES >> 20} MiB")
            finally:
                await response.aclose()
    except TimeoutError:
        raise Unreachable(_LATE.format(within_s)) from None
    except httpx.ConnectError as error:
        raise Unreachable(_why_not(error)) from error
    except httpx.NetworkError as error:
        raise Unreachable(_CUT) if begun else _Dropped(_DROPPED) from error
    except httpx.HTTPError as error:
        raise _unread(error, begun) from error
    return _Answer(response.status_code, bytes(body))


def _unread(error: Exception, begun: bool) -> Unreachable:
    """What to say of an answer that is none, `begun` or not. That the other side ended it stands in the text alone."""
    text = str(error)
    if begun and "peer closed" in text:
        return Unreachable(_CUT)
    if not begun and "disconnected" in text:
        return _Dropped(_DROPPED)
    return Unreachable(f"it does not speak HTTP: {text}")


def _why_not(error: BaseException) -> str:
    """Why no connection came about. Where a name has several addresses, each has its own error, deep within."""
    deep = list(_within(error))
    # A socket's file that is gone is a port that nobody listens on.
    if any(found.errno in (errno.ECONNREFUSED, errno.ENOENT) for found in deep):
        return "connection refused"
    return f"cannot connect: {next((found.strerror for found in reversed(deep) if found.strerror), None) or error}"


def _within(error: BaseException | None) -> Iterator[OSError]:
    """The errors of the system that led to this one, the first cause last."""
    while error is not None:
        if isinstance(error, OSError):
            yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _within(one)
        error = error.__cause__ or error.__context__


class _Detail(msgspec.Struct):
    message: str
    code: str = ""


class _Error(msgspec.Struct):
    error: _Detail


def _complaint(response: _Answer) -> tuple[str, str]:
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
