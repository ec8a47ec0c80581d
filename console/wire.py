"""HTTP as the console speaks it: kept-alive connections to one address, over which questions get whole answers.

On asyncio and the parser that the server brings along, not on a client library: importing httpx took a fifth of the
first frame, and each answer through it a tenth of all that the console costs.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import httptools

_AHEAD_S = 0.25


class WireError(Exception):
    """No answer came; the text says why in a few words."""


class _Dropped(WireError):
    """The connection ended before the first byte of an answer."""


@dataclass(frozen=True)
class Answer:
    """A whole answer: its status code and its body."""

    status_code: int
    content: bytes


class Wire:
    """Asks one http or https address. Used within one event loop; raises ValueError for what is no such address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address like http://127.0.0.1:8000")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        self._path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        name = f"[{self._host}]" if ":" in self._host else self._host.encode("idna").decode()
        self._headers = {"Host": f"{name}:{parts.port}" if parts.port else name, "User-Agent": "tandem-console"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._idle: list[_Connection] = []

    async def ask(self, method: str, path: str, headers: Mapping[str, str], most_bytes: int) -> Answer:
        """The answer to a question without a body, unless it takes more than `most_bytes`; raises WireError.

        Cancelling it closes its connection. An order goes over a new one: a kept one may have ended unseen, and what
        was sent over it must not be sent twice.
        """
        question = self._head(method, path, headers)
        while method == "GET" and self._idle:
            try:
                return await self._over(self._idle.pop(), question, most_bytes)
            except _Dropped:
                continue
        return await self._over(await self._connected(), question, most_bytes)

    def close(self) -> None:
        """End the connections that are kept."""
        for connection in self._idle:
            connection.end()
        self._idle.clear()

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        fields = {**self._headers, **headers}
        if not all(value.isascii() and value.isprintable() for value in fields.values()):
            raise WireError("the token (TANDEM_METRICS_TOKEN or TANDEM_ADMIN_TOKEN) is no printable ASCII on one line")
        if method != "GET":
            fields["Content-Length"] = "0"
        lines = [f"{method} {self._path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    async def _over(self, connection: _Connection, question: bytes, most_bytes: int) -> Answer:
        try:
            answer = await connection.ask(question, most_bytes)
        except BaseException:
            connection.end()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.end()
        return answer

    async def _connected(self) -> _Connection:
        # Certificates are read only where they are needed: that takes as long as a frame.
        checked = ssl.create_default_context() if self._secure else None
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, self._host, self._port, ssl=checked, happy_eyeballs_delay=_AHEAD_S
            )
        except OSError as error:
            raise WireError(_why_not(error)) from error
        return connection


def _why_not(error: OSError) -> str:
    """Why no connection came about. Where a name has several addresses, the error says so of each in its text alone."""
    refused = errno.ECONNREFUSED
    if error.errno == refused or f"[Errno {refused}]" in str(error):
        return "connection refused"
    return f"cannot connect: {error.strerror or error}"


class _Connection(asyncio.Protocol):
    """One connection, over which one question at a time is asked. The parser calls the `on_` methods."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Answer] | None = None
        self._body = bytearray()
        self._came = 0
        self._most = 0
        self._headed = self._measured = self._keeps = False

    @property
    def reusable(self) -> bool:
        """Whether another question may follow the one that was answered."""
        return self._keeps and self._transport is not None and not self._transport.is_closing()

    async def ask(self, question: bytes, most_bytes: int) -> Answer:
        if self._transport is None or self._transport.is_closing():
            raise _Dropped("disconnected")
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._came, self._most = bytearray(), 0, most_bytes
        self._headed = self._measured = self._keeps = False
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        return await self._waiting

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        try:
            if self._waiting is None or self._waiting.done():
                raise WireError("it sends what nobody asked for")
            if self._came > self._most:
                raise WireError(f"an answer of more than {self._most >> 20} MiB")
            self._parser.feed_data(data)
        except (WireError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(error if isinstance(error, WireError) else WireError(f"it does not speak HTTP: {error}"))
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        if self._headed and not self._measured and error is None:
            self.on_message_complete()
        words = "disconnected before its answer ended" if self._came else "disconnected without an answer"
        self._fail(WireError(words) if self._came else _Dropped(words))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._measured = self._measured or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        # The parser forgets it with the last byte.
        self._keeps = self._parser.should_keep_alive()
        if status >= 200 and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Answer(status, bytes(self._body)))

    def _fail(self, error: WireError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
