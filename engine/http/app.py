"""The HTTP application: its routes, and what surrounds every request (id, checks, errors, counts)."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from engine.api import EnginePort
from engine.config import ServiceConfig
from engine.core.scheduling.inbox import loading
from engine.http.admin import Admin
from engine.http.body import Bodies
from engine.http.body_scan import check_extent
from engine.http.connection_table import ConnectionLimits, ConnectionTable
from engine.http.dialect import Origin, Reader, Renderer
from engine.http.errors import internal
from engine.http.guard import Guard
from engine.http.metrics import Metrics
from engine.http.openai.chat import read_chat
from engine.http.openai.completions import read_completion
from engine.http.pages import Pages
from engine.http.stream_handler import OpenStreams, StreamHandler
from engine.http.wire import (
    CONTEXT_KEY,
    ClientGone,
    Context,
    Header,
    Receive,
    Scope,
    Send,
    context_of,
    header,
    new_id,
    refuse,
    respond,
)
from engine.process.log_ring import LogRing
from engine.process.process_state import ProcessState
from engine.request import RequestError

log = logging.getLogger("tandem.http")

NOT_BUILT = ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank")

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_FIRST_WORD = re.compile(r"[^\s/]{1,64}")


class _Endpoint:
    """A handler as a raw ASGI application, which is how starlette leaves it alone. `pattern` is its route's path."""

    def __init__(self, pattern: str, handler: Handler) -> None:
        self.pattern = pattern
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


def _route(method: str, pattern: str, handler: Handler) -> Route:
    return Route(pattern, _Endpoint(pattern, handler), methods=[method])


class App:
    """The ASGI application over one engine."""

    def __init__(
        self,
        engine: EnginePort,
        service: ServiceConfig,
        version: str,
        log_ring: LogRing | None = None,
        process: ProcessState | None = None,
    ) -> None:
        process = process or ProcessState()
        self._engine = engine
        self._service = service
        self._version = version
        self._guard = Guard(service)
        self.bodies = Bodies(service.body_limit_bytes)
        self.connections = ConnectionTable(ConnectionLimits.of(service))
        self._metrics = Metrics(engine, self.connections, process, aliases=service.vllm_metrics)
        self.streams = OpenStreams(engine, service, self._metrics)
        pages = Pages(engine, self._guard, self._metrics, process)
        self.admin = admin = Admin(engine, self._guard, self.streams, log_ring or LogRing())
        self._router = Router(
            [
                self._answers("/v1/chat/completions", read_chat, waits=True),
                self._answers("/v1/completions", read_completion),
                _route("GET", "/v1/models", pages.models),
                _route("GET", "/v1/models/{name:path}", pages.model),
                _route("GET", "/v1/status", pages.status),
                _route("GET", "/health", pages.health),
                _route("GET", "/metrics", pages.metrics),
                _route("GET", "/slots", pages.slots),
                _route("GET", "/admin/requests", admin.requests),
                _route("GET", "/admin/requests/{id}", admin.request),
                _route("GET", "/admin/log", admin.log),
                _route("POST", "/admin/requests/{id}/cancel", admin.cancel),
                _route("POST", "/admin/roles/{name}/load", admin.load),
                _route("POST", "/admin/roles/{name}/unload", admin.unload),
                _route("POST", "/admin/drain", admin.drain),
                _route("POST", "/admin/resume", admin.resume),
                *(_route("POST", path, _not_built) for path in NOT_BUILT),
            ],
            redirect_slashes=False,
            default=_unknown,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        context = Context(*_request_id(scope))
        scope[CONTEXT_KEY] = context
        # Starlette reports a wrong method as an exception only to a router inside an application.
        scope["app"] = self
        try:
            if scope["method"] == "OPTIONS":
                await respond(scope, send, 204, b"", headers=self._guard.preflight(scope))
            else:
                self._guard.check_host(scope)
                context.headers += self._guard.check_origin(scope)
                context.key = self._guard.check_key(scope)
                await self._router(scope, receive, send)
        except ClientGone:
            return
        except RequestError as error:
            await refuse(scope, send, error)
        except HTTPException as error:
            await refuse(scope, send, _wrong_method(scope, error), headers=_allow(error))
        except Exception as error:
            # The last resort of one request: the others go on, so nothing may pass. After headers the server closes.
            extra = {"request": context.request_id}
            log.error("request %s failed: %s", context.request_id, type(error).__name__, exc_info=error, extra=extra)
            if context.started:
                raise
            await refuse(scope, send, internal("answering the request"))
        finally:
            if context.started:
                self._metrics.responded(_pattern(scope), context.status)

    def _answers(self, pattern: str, read: Reader, *, waits: bool = False) -> Route:
        """A route that answers requests of one dialect. `waits`: reading them waits for the template's process. What is
        refused before the engine has it is counted here; the engine counts the rest."""

        async def handler(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await self._serve(scope, receive, send, read, waits)
            except RequestError as error:
                self._engine.refuse(_engine_id(scope), _client(scope), error)
                raise

        return _route("POST", pattern, handler)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, read: Reader, waits: bool) -> None:
        model = self._engine.model
        if model is None:
            raise loading()
        body = await self.bodies.receive(scope, receive)
        # What a key's owner has said stays apart from what others have: caches never match across namespaces.
        origin = Origin(_engine_id(scope), _client(scope), context_of(scope).key or "")
        handler = StreamHandler(self.streams, scope, receive, send, origin.id)

        def work(data: bytearray) -> Renderer:
            check_extent(data, model.max_len)
            return read(data, model, origin, self._version)

        try:
            handler.watch()
            await handler.serve(await self.bodies.read(body, work, lambda: not handler.gone, waits=waits))
        finally:
            body.release()
            handler.close()


def _request_id(scope: Scope) -> tuple[str, list[Header]]:
    """The client's own id where it is usable, else a new one; and the header that returns it."""
    given = header(scope, b"x-request-id")
    request_id = given if given is not None and _ID.fullmatch(given) else new_id()
    return request_id, [(b"x-request-id", request_id.encode())]


def _engine_id(scope: Scope) -> str:
    """What the request is called inside: a client's own id gets a suffix, because clients repeat theirs (a retry after
    a broken connection), and the engine must never take one request for another."""
    request_id = context_of(scope).request_id
    return f"{request_id}-{secrets.token_hex(3)}" if header(scope, b"x-request-id") == request_id else request_id


def _client(scope: Scope) -> str:
    """Who asks, for people: the API key's label, else the `X-Client` header, else the first word of the user agent."""
    if (key := context_of(scope).key) is not None:
        return key
    label = _text(header(scope, b"x-client") or "")
    if shown := "".join(filter(str.isprintable, label)).strip()[:64]:
        return shown
    word = _FIRST_WORD.search(header(scope, b"user-agent") or "")
    return "".join(filter(str.isprintable, word.group())) if word else "unknown"


def _text(value: str) -> str:
    """A header's text: UTF-8 where it is some, as nearly every client that leaves ASCII means it."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _pattern(scope: Scope) -> str:
    """The route's pattern, never the raw path: a label must not grow with what clients type."""
    endpoint = scope.get("endpoint")
    return endpoint.pattern if isinstance(endpoint, _Endpoint) else "other"


def _allow(error: HTTPException) -> list[Header]:
    return [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]


def _wrong_method(scope: Scope, error: HTTPException) -> RequestError:
    return RequestError(
        f"{scope['path']} does not take {scope['method']}", status=error.status_code, code="method_not_allowed"
    )


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    raise RequestError(f"there is no {str(scope['path'])[:200]} here", status=404, code="unknown_route")


async def _not_built(scope: Scope, receive: Receive, send: Send) -> None:
    raise RequestError(
        f"{scope['path']} is not supported yet; /v1/chat/completions and /v1/completions are",
        status=501,
        code="unsupported_route",
    )
