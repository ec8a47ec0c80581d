"""The console's only network code: an `EngineApi` over HTTP, which says in one sentence what went wrong.

httpx is imported with the first request, which the app sends after its first frame: the import takes 0.1 s.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from console.session.api import LOG_PAGE, EngineAction, NotFound, RequestsQuery, Unreachable, segment
from engine.protocol import CONTRACT, ActionReply, Health, LedgerRow, LogPage, RequestsPage, decode_health

if TYPE_CHECKING:
    import httpx

__all__ = ["BadAddress", "EngineClient", "Unreachable"]

# Timeout of a whole answer, not of each read.
_SNAPSHOT_S = 2.0
# A search through a long ledger takes long, and an engine acts only between two rounds.
_ADMIN_S = 10.0
# Far above any real answer: the address may belong to a server that never stops sending.
_MOST_BYTES = 64 << 20
_SENT = {"User-Agent": "tandem-console", "Accept-Encoding": "identity"}
_NEEDS_TOKEN = "the rest wants a token, set TANDEM_METRICS_TOKEN"
_NEEDS_ADMIN = "set TANDEM_ADMIN_TOKEN to the engine's admin token"
_NO_LEDGER = "this engine has no ledger"
_NO_LOG = "this engine keeps no log to show"
_NO_ACTIONS = "this engine takes no actions"
_DROPPED = "disconnected without an answer"
_LATE = "no answer within {:.0f} s"
_CUT = "disconnected before its answer ended"

T = TypeVar("T")


class BadAddress(ValueError):
    """The address is not one of an engine; the text names it and says what is wrong."""


class Observer(Protocol):
    """Gets every body that a client receives, and the reason of every failed poll."""

    def snapshot(self, url: str, body: bytes) -> None: ...

    def missed(self, url: str, reason: str) -> None: ...


class EngineClient:
    """Kept-alive connections to one engine, through the owner's socket at `socket_path` where there is one.

    Use as an async context manager; raises BadAddress.
    """

    def __init__(self, url: str, observer: Observer | None = None, socket_path: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._observer = observer
        self._socket_path = socket_path
        try:
            self._base = _base(self.url)
        except ValueError as error:
            raise BadAddress(f"--url {url}: {error}") from None
        self._http: httpx.AsyncClient | None = None
        self._answered = False

    async def fetch(self) -> Health:
        """The engine's newest snapshot, whatever its status code; raises Unreachable."""
        return (await self.fetch_with_body())[0]

    async def fetch_with_body(self) -> tuple[Health, bytes]:
        """The snapshot, and the bytes in which it came; raises Unreachable."""
        try:
            health, body = await self._ask()
        except Unreachable as error:
            if self._observer is not None:
                self._observer.missed(self.url, str(error))
            raise
        if self._observer is not None:
            self._observer.snapshot(self.url, body)
        return health, body

    async def _ask(self) -> tuple[Health, bytes]:
        client = self._connection()
        response = await self._get(client, _request(client, "GET", f"{self._base}/health"), _SNAPSHOT_S)
        if response.status_code in (401, 403) or not response.content:
            raise Unreachable(f"status {response.status_code}: {_NEEDS_TOKEN}")
        try:
            return decode_health(response.content), response.content
        except msgspec.MsgspecError as error:
            if status := _status_alone(response.content):
                raise Unreachable(f"it says only “{status}”: {_NEEDS_TOKEN}") from None
            raise Unreachable(f"status {response.status_code}, not a {CONTRACT} body: {error}") from error

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage:
        """A page of the ledger, newest first; raises Unreachable, or NotFound where the engine has no ledger."""
        given = {"limit": str(query.limit), "q": query.text, "before": query.before or ""}
        return await self._read("/admin/requests", given, RequestsPage, _NO_LEDGER)

    async def fetch_request(self, request_id: str) -> LedgerRow:
        """One request's row; raises Unreachable, or NotFound where the ledger has none of that id."""
        return await self._read(f"/admin/requests/{segment(request_id)}", {}, LedgerRow, _NO_LEDGER)

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage:
        """Log lines later than number `after`, at most `limit`; raises Unreachable, or NotFound without a log."""
        return await self._read("/admin/log", {"after": str(after), "limit": str(limit)}, LogPage, _NO_LOG)

    async def act(self, action: EngineAction) -> ActionReply:
        """The reply to an action; a refusal is a reply too. Raises Unreachable where no answer came."""
        # A new connection: a kept one may have been closed, and an action must not be sent twice.
        async with _open(self._base, _action_headers(), self._socket_path) as client:
            response = await _send(client, _request(client, "POST", self._base + action.path), _ADMIN_S)
        try:
            return msgspec.json.decode(response.content, type=ActionReply)
        except msgspec.MsgspecError:
            why, code = _error_of(response)
        if response.status_code in (401, 403):
            why = f"{why}; {_NEEDS_ADMIN}"
        elif code == "unknown_route":
            why = _NO_ACTIONS
        return ActionReply(done=False, message=why)

    async def _read(self, path: str, given: Mapping[str, str], kind: type[T], missing: str) -> T:
        """The body of a GET as `kind`; `missing` is the error text where the engine does not know the path."""
        query = urlencode({name: value for name, value in given.items() if value}, errors="replace")
        client = self._connection()
        request = _request(client, "GET", f"{self._base}{path}?{query}" if query else self._base + path)
        response = await self._get(client, request, _ADMIN_S)
        if response.status_code == 200:
            try:
                return msgspec.json.decode(response.content, type=kind)
            except msgspec.MsgspecError as error:
                raise Unreachable(f"an answer of another shape: {error}") from error
        why, code = _error_of(response)
        if response.status_code == 404:
            raise NotFound(why if code not in ("", "unknown_route") else missing)
        if response.status_code in (401, 403):
            why = f"{why}; {_NEEDS_TOKEN}"
        raise Unreachable(why)

    def _connection(self) -> httpx.AsyncClient:
        """The client for all reads; its connections are kept."""
        if self._http is None:
            self._http = _open(self._base, _read_headers(), self._socket_path)
        return self._http

    async def _get(self, client: httpx.AsyncClient, request: httpx.Request, within_s: float) -> _Response:
        """Send the request; once more where the server may have closed a kept connection before."""
        kept = self._answered
        try:
            answer = await _send(client, request, within_s)
        except _Dropped:
            if not kept:
                raise
            answer = await _send(client, request, within_s)
        self._answered = True
        return answer

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()


def _read_headers() -> dict[str, str]:
    # The metrics token comes first, because it permits less.
    return _bearer(os.environ.get("TANDEM_METRICS_TOKEN") or os.environ.get("TANDEM_ADMIN_TOKEN"))


def _action_headers() -> dict[str, str]:
    return _bearer(os.environ.get("TANDEM_ADMIN_TOKEN"))


def _bearer(token: str | None) -> dict[str, str]:
    if token and not (token.isascii() and token.isprintable()):
        raise Unreachable("the token (TANDEM_METRICS_TOKEN or TANDEM_ADMIN_TOKEN) is no printable ASCII on one line")
    return {"Authorization": f"Bearer {token}"} if token else {}


@dataclass(frozen=True)
class _Response:
    """A whole response."""

    status_code: int
    content: bytes


class _Dropped(Unreachable):
    """The connection ended before an answer began."""


def _base(url: str) -> str:
    """The prefix of every request's address; raises ValueError for what is no address of an engine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an address like http://127.0.0.1:8000")
    # A name without an IDNA form cannot be resolved.
    parts.hostname.encode("idna")
    path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _open(base: str, headers: Mapping[str, str], socket_path: str | None) -> httpx.AsyncClient:
    """A client that ignores the proxies of the environment, which are for other hosts. With `socket_path` it connects
    through that Unix socket.

    With a token, a user name in the address is not sent: httpx would replace the token with it.
    """
    import httpx

    # Reading the box's certificates takes as long as a frame, so only where they are needed.
    checked = ssl.create_default_context() if base.startswith("https:") else False
    auth = httpx.Auth() if "Authorization" in headers else None
    way = httpx.AsyncHTTPTransport(uds=socket_path, verify=checked)
    return httpx.AsyncClient(headers={**_SENT, **headers}, auth=auth, timeout=None, trust_env=False, transport=way)


def _request(client: httpx.AsyncClient, method: str, url: str) -> httpx.Request:
    import httpx

    try:
        return client.build_request(method, url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"no such address: {error}") from None


async def _send(client: httpx.AsyncClient, request: httpx.Request, within_s: float) -> _Response:
    """The whole response to a request without a body; raises Unreachable."""
    import httpx

    begun = False
    try:
        async with asyncio.timeout(within_s):
            response = await client.send(request, stream=True)
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
        raise _unreadable(error, begun) from error
    return _Response(response.status_code, bytes(body))


def _unreadable(error: Exception, begun: bool) -> Unreachable:
    """The error for a response that is not HTTP, or that the server cut off. httpx tells these apart by text only."""
    text = str(error)
    if begun and "peer closed" in text:
        return Unreachable(_CUT)
    if not begun and "disconnected" in text:
        return _Dropped(_DROPPED)
    return Unreachable(f"it does not speak HTTP: {text}")


def _why_not(error: BaseException) -> str:
    """Why the connection failed. Where a name has several addresses, the errors are nested, one for each address."""
    deep = list(_within(error))
    # A socket's file that is gone is a port that nobody listens on.
    if any(found.errno in (errno.ECONNREFUSED, errno.ENOENT) for found in deep):
        return "connection refused"
    return f"cannot connect: {next((found.strerror for found in reversed(deep) if found.strerror), None) or error}"


def _within(error: BaseException | None) -> Iterator[OSError]:
    """The OS errors among the causes of an error, the first cause last."""
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


def _error_of(response: _Response) -> tuple[str, str]:
    """The message and code of an error body; the status where there is none."""
    try:
        detail = msgspec.json.decode(response.content, type=_Error).error
    except msgspec.MsgspecError:
        return f"status {response.status_code}", ""
    return detail.message, detail.code


def _status_alone(body: bytes) -> str:
    """The status in a body that holds nothing else, which is what an engine answers without a token."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.MsgspecError:
        return ""
    return fields["status"] if set(fields) == {"status"} else ""
