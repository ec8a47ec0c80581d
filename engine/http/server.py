"""uvicorn around the application: no log lines of its own, no signal handlers, known when ready."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from engine.http.app import App
from engine.http.connection import OneRequestAtATime
from engine.listening import BACKLOG

GRACE_S = 2
"""Seconds that answers may still take to reach their sockets once the service ends."""

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (5 s is common): the one who closes second cannot lose a request to it."""


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
