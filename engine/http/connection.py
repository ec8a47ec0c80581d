"""One client's connection: one request at a time, a bounded head, time limits, and the errors of what is no request."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import cast

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
from uvicorn._types import Scope as AsgiScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from engine.http.connection_table import BYTES_A_SECOND, Closed, ConnectionTable, TableState, Wait
from engine.http.errors import error_body
from engine.http.wire import JSON, OWNER_KEY, Answer, Scope, new_id
from engine.process.owner_socket import is_owner
from engine.request import RequestError

HEAD_LIMIT_BYTES = 64 << 10
"""Of a request's line and headers, unless they arrive in one piece."""

DISCARD_S = 5.0
"""How long a body is read on that was refused before it was whole; then the connection closes."""

DISCARD_PAUSE_S = 0.016
"""Between two pieces (of 256 KiB at most) of such bodies, of all connections together: 16 MiB a second."""

AT_ONCE = (b"GET", b"HEAD", b"OPTIONS")
"""Methods whose answers nothing holds up, so that a client which has closed its sending side can still get them."""


class _Phase(Enum):
    """Where a request is. IDLE: between an answer and the next request's first byte."""

    HEAD = 0
    BODY = 1
    ANSWER = 2
    IDLE = 3


class OneRequestAtATime(HttpToolsProtocol):
    """A connection that hears its client leave while it answers.

    uvicorn queues what follows a running request, stops reading for it, and then neither hears the connection's end nor
    tells it to the request that runs. Here nothing that follows is kept: the connection closes after the answer, and a
    client that pipelines asks again, as RFC 9112 (9.3.2) wants of it. Nor is a head kept that does not end: uvicorn
    would take any length, and longer for each part of it.

    uvicorn sets a time limit to the wait for the next request only. The table that the connection belongs to sweeps all
    connections every second: a head, a body and an answer that is not read have their limits too, which bytes that
    trickle do not push away.
    """

    _of_owner = False
    _deaf = False
    _between = True
    _in_head = False
    _upgrades = False
    _head_bytes = 0
    _body_bytes = 0
    _discards_until: float | None = None
    _phase = _Phase.HEAD
    _stall: tuple[float, int] | None = None
    """Since when bytes wait that the client does not read, and how many there were then."""
    since = 0.0

    @property
    def _table(self) -> ConnectionTable:
        return cast(TableState, self.server_state).table

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self._table.clock()
        # A client that is gone already has no address.
        address = None if self._of_owner else "" if self.client is None else self.client[0]
        if not self._table.enter(self, address):
            self._refuse(_too_many())

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.leave(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open to be written to. Whoever waits for generated text has left: an end of what
        is sent looks the same from a client that closed, and nobody would read what is generated."""
        if not self._answering() or self.cycle.more_body or self.parser.get_method() not in AT_ONCE:
            return False
        self._deaf = True
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._take(data)
        self._enter_phase()
        if self._phase is _Phase.BODY and not self._answering():
            self._discard()

    def _discard(self) -> None:
        """Read on slowly, and not for long, in a body that was refused before it was whole: closing at once would take
        the refusal away from a client that still sends, and the loop reads what comes fast as long as it comes."""
        now = self.loop.time()
        if self._discards_until is None:
            self._discards_until = now + DISCARD_S
        if now > self._discards_until:
            self.transport.close()
            return
        discarding = self._table.discarding
        discarding.add(self)
        self.transport.pause_reading()
        self.loop.call_later(DISCARD_PAUSE_S * len(discarding), self._read_on)

    def _read_on(self) -> None:
        self._table.discarding.discard(self)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _enter_phase(self) -> None:
        if self._deaf or (self._between and self._answering()):
            phase = _Phase.ANSWER
        elif self._between:
            phase = _Phase.HEAD if self.timeout_keep_alive_task is None else _Phase.IDLE
        else:
            phase = _Phase.HEAD if self._in_head else _Phase.BODY
        if phase is not self._phase:
            self._phase = phase
            self.since = self._table.clock()

    def _take(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as reached:
            if self._upgrades:
                self._stay(data[reached.args[0] :])
        except httptools.HttpParserError:
            self._refuse(RequestError("what came is not HTTP/1.1", status=400, code="invalid_http"))
        self._head_bytes += len(data)
        if self._in_head and self._head_bytes > HEAD_LIMIT_BYTES and not self._deaf:
            words = f"the request's line and headers have over {HEAD_LIMIT_BYTES:,} bytes, which is the limit"
            self._refuse(RequestError(words, status=431, code="head_too_large"))

    def _stay(self, rest: bytes) -> None:
        """Take the request as if it asked for no other protocol, which RFC 9110 (7.8) allows. The parser has given up
        its body for the other protocol's bytes, and clients that offer HTTP/2 (Java's) send one."""
        self._upgrades = False
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._take(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._in_head = True
        self._head_bytes = self._body_bytes = 0
        self._discards_until = None

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._answering():
            self._deaf = True
            self.cycle.keep_alive = False
            return
        # A tunnel (CONNECT) is refused by the application as any unknown method is.
        self._upgrades = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._upgrades:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf and not self._upgrades:
            self._between = True
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is _Phase.ANSWER:
            self._phase = _Phase.IDLE
            self.since = self._table.clock()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        version = cycle.scope["http_version"]
        super()._start_asgi_task(cycle, app if version == "1.1" else _Unframed(app, cycle))

    def waits_for(self) -> Wait | None:
        if self.transport.is_closing():
            return Wait.READING
        if self._phase is _Phase.IDLE:
            return Wait.NEXT_REQUEST
        if self._answering() and not self.cycle.more_body:
            return None
        if self._phase is _Phase.BODY and self._answering():
            return Wait.BODY
        return Wait.FIRST_REQUEST if self.cycle is None else Wait.NEXT_REQUEST

    def evict(self) -> None:
        if self.waits_for() is Wait.BODY and not self.transport.get_write_buffer_size():
            self._refuse(_too_many())
        else:
            self._end()

    def check(self, now: float) -> None:
        if self._unread(now) or self.transport.is_closing():
            return
        limits, table = self._table.limits, self._table
        waited = now - self.since
        if self._phase is _Phase.HEAD and waited > limits.head_s:
            table.closed[Closed.SLOW_HEAD] += 1
            if self._between:
                self._end()
            else:
                self._refuse(
                    _too_slow("line and headers", f"{limits.head_s:g} s (TANDEM_HEAD_TIMEOUT)", "head_timeout")
                )
        elif self._phase is _Phase.BODY and self.flow.read_paused:
            # The application does not take what has come: the wait is not the client's.
            self.since = now
        elif self._phase is _Phase.BODY and limits.stalled(waited, self._body_bytes):
            table.closed[Closed.SLOW_BODY] += 1
            if not self._answering():
                self._end()
            else:
                limit = f"{limits.stall_s:g} s (TANDEM_STALL_TIMEOUT) and 1 s for each {BYTES_A_SECOND:,} bytes"
                self._refuse(_too_slow("body", limit, "body_timeout"))

    def _unread(self, now: float) -> bool:
        """Whether bytes wait for a client that must read before anything else happens; ends it where it reads too
        slowly. Meanwhile nothing is added to them."""
        left = self.transport.get_write_buffer_size()
        if left == 0 or not (self.flow.write_paused or self.transport.is_closing()):
            self._stall = None
            return False
        if self._stall is None:
            self._stall = (now, left)
        began, there = self._stall
        if self._table.limits.stalled(now - began, there - left):
            self._table.closed[Closed.SLOW_READER] += 1
            self.transport.abort()
        return True

    def _end(self) -> None:
        """Close; at once where the client reads nothing, so that no descriptor waits for it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Answer in the place of the application, which has not seen the request, or not whole. Never into the midst
        of an answer, nor before the one that is on its way."""
        self._deaf = True
        if self._answering() and (self.cycle.response_started or not self.cycle.more_body):
            self.cycle.keep_alive = False
            return
        retry = [(b"retry-after", b"%d" % error.retry_after)] if error.retry_after is not None else []
        self._write(Answer(error.status, error_body(error), [*retry, (b"connection", b"close")]))
        self.transport.close()

    def _write(self, answer: Answer) -> None:
        own = [
            (b"content-type", JSON),
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", new_id().encode()),
        ]
        headers = (*self.server_state.default_headers, *own, *answer.headers)
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body]))

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class OwnerConnection(OneRequestAtATime):
    """A connection through the owner's socket: its requests carry the owner's rights, so the process at its other end
    must be the owner's too, also where the socket's file was made accessible to others."""

    _of_owner = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not is_owner(transport.get_extra_info("socket")):
            self._deaf = True
            transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)[OWNER_KEY] = True


class _Unframed:
    """An application for an HTTP/1.0 client, which knows no chunks: a body without a length ends with the connection.
    uvicorn would frame it in chunks all the same."""

    def __init__(self, app: ASGI3Application, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: AsgiScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        cycle = self._cycle
        without_length = False

        async def unframed(message: ASGISendEvent) -> None:
            nonlocal without_length
            if message["type"] == "http.response.start":
                without_length = all(name.lower() != b"content-length" for name, _ in message.get("headers", []))
                if without_length:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and without_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, unframed)


def _too_many() -> RequestError:
    words = "this server has as many connections as it takes (TANDEM_CONNECTIONS, TANDEM_CONNECTIONS_PER_ADDRESS)"
    return RequestError(words, status=503, code="too_many_connections", retry_after=5)


def _too_slow(what: str, limit: str, code: str) -> RequestError:
    return RequestError(f"the request's {what} did not come within {limit}", status=408, code=code)
