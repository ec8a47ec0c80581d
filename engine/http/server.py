"""uvicorn around the application: no log lines of its own, no signal handlers, known when ready."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from engine.http.app import App
from engine.http.connection import OneRequestAtATime, OwnerConnection
from engine.http.connection_table import TableState
from engine.process.listening import BACKLOG
from engine.process.owner_socket import OwnerSocket

GRACE_S = 2
"""Seconds that answers may still take to reach their sockets once the service ends."""

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (5 s is common): the one who closes second cannot lose a request to it."""

TICKS_A_SWEEP = 10


class AppServer(uvicorn.Server):
    """Serves an application on sockets that are already bound, TCP ones and the owner's. `ready` is set once it accepts
    connections."""

    server_state: TableState

    def __init__(self, app: App, owner: OwnerSocket | None = None) -> None:
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
        self.server_state = TableState(app.connections)
        self.ready = threading.Event()
        self._owner = owner

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._owner is not None:
            loop = asyncio.get_running_loop()
            # uvicorn closes it with its own.
            self.servers.append(
                await loop.create_unix_server(self._owner_connection, sock=self._owner.socket, backlog=BACKLOG)
            )
        self.ready.set()

    def _owner_connection(self) -> OwnerConnection:
        return OwnerConnection(self.config, self.server_state, self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn calls it ten times a second."""
        if counter % TICKS_A_SWEEP == 0:
            self.server_state.table.sweep()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the service, which drains before it ends the server."""
        yield

    def end(self) -> None:
        """Stop accepting, finish what is being written, and return from `serve`."""
        self.should_exit = True
