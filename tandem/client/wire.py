"""Talks to a running engine over HTTP: plain requests, and server-sent events as they arrive.

An engine of this user is asked through its owner's socket, which needs no token and which clients cannot fill; where
that is gone (its state directory was removed), over TCP as any other.

Streams are read from plain sockets, for measured reasons. An event costs half the processor time of httpx or less, and
a bench shares the cores with the engine. httpx-sse drops comments, which say what a request waits for.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

import msgspec

from engine.process import owner_socket
from engine.process.state_dir import ServiceRecord
from engine.protocol import Health, decode_health
from tandem.exits import CommandError, Exit

AGENT = "tandem"
KEY_VARIABLE = "TANDEM_API_KEY"
"""The API key that the commands use as clients of an engine that wants one."""
METRICS_VARIABLE, ADMIN_VARIABLE = "TANDEM_METRICS_TOKEN", "TANDEM_ADMIN_TOKEN"

_LINE_LIMIT = 1 << 20


class NoAnswer(CommandError):
    """Nothing answers at the address."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"nothing answers at {url} ({why}); is an engine running? `tandem serve` starts one", Exit.NOT_RUNNING
        )


class Refused(CommandError):
    """The engine answered with an error. `status` 0: the error came within a stream."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        where = f"{status} {code}" if code else str(status)
        super().__init__(f"the engine refused ({where}): {message}" if status else f"the engine failed: {message}")
        self.status = status
        self.error_code = code


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's base URL, taken apart; `socket` is the path of its owner's socket, where it is to be used."""

    url: str
    host: str
    port: int
    secure: bool
    path: str
    socket: str | None = None

    @classmethod
    def of_engine(cls, record: ServiceRecord) -> Address:
        """An engine of this user, as its record names it."""
        return msgspec.structs.replace(cls.of(record.url), socket=record.socket)

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises CommandError (exit 2) for what is no http URL."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port, host = parts.port, parts.hostname or ""
            host.encode("idna" if ":" not in host else "ascii")
        except ValueError as why:
            raise CommandError(f"--url is {url!r}: {why}", Exit.USAGE) from why
        if parts.scheme not in ("http", "https") or not host or " " in url or not url.isprintable():
            raise CommandError(f"--url is {url!r}; allowed: http://HOST:PORT", Exit.USAGE)
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        shown = f"{parts.scheme}://{parts.netloc}{path}"
        return cls(url=shown, host=host, port=port or (443 if secure else 80), secure=secure, path=path)


class EngineError(msgspec.Struct):
    message: str
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    error: EngineError


def refusal(status: int, body: bytes) -> Refused:
    """The engine's own words of an error answer."""
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer).error
    except msgspec.MsgspecError:
        words = " ".join(body[:300].decode("utf-8", "replace").split())
        return Refused(status, None, f"{words or 'no words'} (is it an engine?)")
    sent = {"invalid_api_key": KEY_VARIABLE, "not_operator": ADMIN_VARIABLE, "not_local": METRICS_VARIABLE}.get(
        error.code or ""
    )
    hint = f"; the commands send the one in {sent}" if sent is not None else ""
    return Refused(status, error.code, error.message + hint)


def get(address: Address, path: str, *, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises NoAnswer."""
    return _answered(address, "GET", path, _headers(METRICS_VARIABLE, ADMIN_VARIABLE), timeout_s)


def post(address: Address, path: str, *, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of an operator's order, a POST without a body. Raises NoAnswer."""
    return _answered(address, "POST", path, _headers(ADMIN_VARIABLE), timeout_s)


def _answered(address: Address, method: str, path: str, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=timeout_s)
    try:
        # A connection that has a socket opens none.
        connection.sock = _to_owner(address, timeout_s)
        connection.request(method, address.path + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as why:
        raise NoAnswer(address.url, str(why) or type(why).__name__) from why
    finally:
        connection.close()


def _to_owner(address: Address, timeout_s: float | None) -> socket.socket | None:
    """A connection to the owner's socket; None where TCP is to be used. Raises OSError for an engine that is there and
    does not take it."""
    if address.socket is None:
        return None
    try:
        return owner_socket.connect(address.socket, timeout_s)
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def _headers(*variables: str) -> dict[str, str]:
    """Headers with the first token that is set: over TCP an engine tells little without one."""
    headers = {"User-Agent": AGENT, "Connection": "close"}
    token = next(filter(None, map(_secret, variables)), "")
    return headers | {"Authorization": f"Bearer {token}"} if token else headers


def _secret(variable: str) -> str:
    """The secret in a variable, empty where there is none. Raises CommandError (exit 2) for what no header can hold."""
    secret = os.environ.get(variable, "").strip()
    if not secret.isprintable() or not secret.isascii():
        raise CommandError(f"{variable} is a secret, not shown; allowed: printable ASCII on one line", Exit.USAGE)
    return secret


def health(address: Address, *, timeout_s: float = 5.0) -> Health:
    """The engine's health, whatever its status. Raises NoAnswer, and Refused where the answer is not a health report
    or is only a status, which is all that an engine tells without a token."""
    status, body = get(address, "/health", timeout_s=timeout_s)
    if not body:
        raise Refused(
            status,
            "no_token",
            f"{address.url}/health tells only its status; the rest wants a token: set {METRICS_VARIABLE} or "
            f"{ADMIN_VARIABLE} (`tandem secrets rotate metrics` makes one), or leave --url out for an engine of yours",
        )
    try:
        return decode_health(body)
    except msgspec.MsgspecError as why:
        raise Refused(status, None, f"{address.url}/health is not an engine's health: {why}") from why


class Opened(msgspec.Struct, frozen=True):
    """A stream's headers arrived; names are in lower case."""

    headers: Mapping[str, str]


class Comment(msgspec.Struct, frozen=True):
    """A line for people: what the request waits for or how far its prompt is read."""

    text: str


class Data(msgspec.Struct, frozen=True):
    """One event's JSON."""

    body: bytes


StreamEvent = Opened | Comment | Data


@asynccontextmanager
async def stream(
    address: Address, path: str, body: bytes, *, client: str = AGENT
) -> AsyncIterator[AsyncIterator[StreamEvent]]:
    """POST `body` and hand out the events of the answer up to its `[DONE]`. Leaving the block closes the connection,
    which is how a client cancels. Raises NoAnswer, Refused, and CommandError where the stream ends early."""
    try:
        reader, writer = await _connection(address)
    except OSError as why:
        raise NoAnswer(address.url, str(why)) from why
    try:
        authorization = f"Authorization: Bearer {key}\r\n" if (key := _secret(KEY_VARIABLE)) else ""
        head = (
            f"POST {address.path}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nUser-Agent: {client}\r\n"
            f"{authorization}Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        async with aclosing(_events(address, reader)) as events:
            yield events
    except (ConnectionError, asyncio.IncompleteReadError) as why:
        raise CommandError(f"{address.url} closed the connection in the middle of an answer") from why
    finally:
        writer.close()


async def _connection(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if (opened := _to_owner(address, timeout_s=None)) is not None:
        return await asyncio.open_unix_connection(sock=opened, limit=_LINE_LIMIT)
    secure = ssl.create_default_context() if address.secure else None
    return await asyncio.open_connection(address.host, address.port, ssl=secure, limit=_LINE_LIMIT)


async def _events(address: Address, reader: asyncio.StreamReader) -> AsyncGenerator[StreamEvent, None]:
    status, headers = await _read_head(address, reader)
    chunks = _read_chunks(reader, headers)
    if status != 200:
        raise refusal(status, b"".join([chunk async for chunk in chunks]))
    yield Opened(headers)
    held = b""
    async for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                body = line[5:].strip()
                if body == b"[DONE]":
                    return
                yield Data(body)
            elif line.startswith(b":"):
                yield Comment(line[1:].strip().decode("utf-8", "replace"))
    raise CommandError(f"{address.url} ended a stream without its last event")


async def _read_head(address: Address, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise NoAnswer(address.url, f"it does not speak HTTP: {head[0][:80]!r}")
    pairs = (line.partition(":") for line in head[1:] if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_chunks(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it arrives, by whichever of HTTP/1.1's three framings the answer has."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := _chunk_size(await reader.readuntil(b"\r\n")):
            yield (await reader.readexactly(size + 2))[:-2]
        return
    left = int(headers.get("content-length", -1))
    while left and (chunk := await reader.read(65536 if left < 0 else min(left, 65536))):
        left -= len(chunk) if left > 0 else 0
        yield chunk


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise CommandError(f"the answer is no HTTP: {line[:40]!r} where a chunk's size should be") from None
