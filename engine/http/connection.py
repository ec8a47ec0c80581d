"""One client's connection: one request at a time, a bounded head, polls, and the errors of what is no request."""

from __future__ import annotations

import asyncio
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.http.errors import error_body
from engine.http.wire import AGAIN_KEY, JSON, OWNER_KEY, Again, Answer, Scope, new_id
from engine.owner_socket import is_owner
from engine.request import RequestError

HEAD_LIMIT_BYTES = 64 << 10
"""Of a request's line and headers, unless they arrive in one piece."""

POLL_LIMIT_BYTES = 4 << 10
"""Of a request that is kept to be known again."""


class OneRequestAtATime(HttpToolsProtocol):
    """A connection that hears its client leave while it answers.

    uvicorn queues what follows a running request, stops reading for it, and then neither hears the connection's end nor
    tells it to the request that runs. Here nothing that follows is kept: the connection closes after the answer, and a
    client that pipelines asks again, as RFC 9112 (9.3.2) wants of it. Nor is a head kept that does not end: uvicorn
    would take any length, and longer for each part of it.

    Whoever polls sends the same bytes each time, and beside a forward everything that a request runs through is out of
    the processor's caches: parser, routes and all, four times the time it takes when warm. So where the application
    allows it (`AGAIN_KEY`), the same bytes are answered from here.
    """

    _deaf = False
    _between = True
    _piece = b""
    """What is being read, where a request begins with it and it is short."""
    _asked = b""
    """The newest request's bytes, where they came in one piece."""
    _again: Again | None = None
    """How to answer them once more."""
    _in_head = False
    _upgrades = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if self._again is not None:
            if self._between and data == self._asked and not self.flow.write_paused:
                self._repeat(self._again)
                return
            self._again = None
        self._piece = data if self._between and len(data) <= POLL_LIMIT_BYTES else b""
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
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._in_head = True
        self._head_bytes = 0

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
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf and not self._upgrades:
            self._between = True
            self._asked = self._piece
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._asked and self.cycle.keep_alive:
            self._again = cast(Again | None, self.cycle.scope.get(AGAIN_KEY))
        super().on_response_complete()

    def _repeat(self, again: Again) -> None:
        self._write(again())
        self.server_state.total_requests += 1
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _refuse(self, error: RequestError) -> None:
        """Answer in the place of the application, which has not seen the request, or not whole. Never into the midst
        of an answer, nor before the one that is on its way."""
        self._deaf = True
        if self._answering() and (self.cycle.response_started or not self.cycle.more_body):
            self.cycle.keep_alive = False
            return
        self._write(Answer(error.status, error_body(error), [(b"connection", b"close")]))
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not is_owner(transport.get_extra_info("socket")):
            self._deaf = True
            transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)[OWNER_KEY] = True
