"""Raw ASGI: a response out, and what belongs to every response of one request."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.http.errors import error_body
from engine.request import RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
CONTEXT_KEY = "tandem.context"
OWNER_KEY = "tandem.owner"
"""In the scope of a request that came through the owner's socket."""


@dataclass(slots=True)
class Context:
    """One HTTP request beside its scope: `headers` go on every response, `status` is what was answered (0 before),
    `key` is the label of the API key it carries, None where none is needed."""

    request_id: str
    headers: list[Header]
    status: int = 0
    key: str | None = None

    @property
    def started(self) -> bool:
        return self.status != 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole JSON answer."""

    status: int
    body: bytes
    headers: Sequence[Header]


def new_id() -> str:
    return f"req-{secrets.token_hex(6)}"


class ClientGone(Exception):
    """The client closed before its request was whole."""


def context_of(scope: Scope) -> Context:
    context = scope[CONTEXT_KEY]
    assert isinstance(context, Context)
    return context


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


async def start(scope: Scope, send: Send, status: int, headers: Sequence[Header]) -> None:
    context = context_of(scope)
    context.status = status
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *context.headers]})


async def respond(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    headers: Sequence[Header] = (),
) -> None:
    """A whole response. A 204 carries neither body nor type."""
    own: list[Header] = []
    if status != 204:
        own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await start(scope, send, status, [*own, *headers])
    await send({"type": "http.response.body", "body": body})


async def refuse(
    scope: Scope, send: Send, error: RequestError, *, body: bytes | None = None, headers: Sequence[Header] = ()
) -> None:
    """An error before any other header, with `Retry-After` where it has one.

    Its traceback is dropped: frames that hold their own error in a name are a ring, which would keep the request's
    megabytes until the collector comes by.
    """
    error.__traceback__ = None
    retry = [(b"retry-after", b"%d" % error.retry_after)] if error.retry_after is not None else []
    await respond(scope, send, error.status, error_body(error) if body is None else body, headers=[*retry, *headers])
