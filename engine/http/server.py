"""uvicorn around the application: no log lines of its own, no signal handlers, known when ready."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.http.app import App
from engine.listening import BACKLOG

GRACE_S = 2
"""Seconds that answers may still take to reach their sockets once the service ends."""

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (5 s is common): the one who closes second cannot lose a request to it."""


HEAD_LIMIT_BYTES = 64 << 10
"""Of a request's line and headers, counted from the second piece that arrives."""


class OneRequestAtATime(HttpToolsProtocol):
    """A connection that hears its client leave while it answers.

    uvicorn queues what follows a running request, stops reading for it, and then neither hears the connection's end nor
    tells it to the request that runs. Here nothing that follows is kept: the connection closes after the answer, and a
    client that pipelines asks again, as RFC 9112 (9.3.2) wants of it. Nor is a head kept that does not end: uvicorn
    would take any length, and longer for each part of it.
    """

    _deaf = False
    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_LIMIT_BYTES:
            self._deaf = True
            super().send_400_response(f"The request's head is over {HEAD_LIMIT_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._answering():
            self._deaf = True
            self.cycle.keep_alive = False
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Never into the midst of an answer."""
        if self._answering():
            self._deaf = True
            self.cycle.keep_alive = False
        else:
            super().send_400_response(msg)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class AppServer(uvicorn.Server):
    """Serves an application on sockets that are already bound. `ready` is set once it accepts connections."""

    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=OneRequestAtATime,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the service, which drains before it ends the server."""
        yield

    def end(self) -> None:
        """Stop accepting, finish what is being written, and return from `serve`."""
        self.should_exit = True
