"""A served application on a real socket, its server on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.api import EnginePort
from engine.config import ServiceConfig
from engine.http.app import App
from engine.http.server import AppServer
from engine.process.listening import bind
from engine.process.log_ring import LogRing
from engine.process.owner_socket import OwnerSocket
from tests.support.patience import LONG_S


@dataclass(frozen=True)
class Served:
    """Where it answers, the application behind, and the ring that its `/admin/log` shows."""

    url: str
    port: int
    app: App
    ring: LogRing


@contextmanager
def served(engine: EnginePort, service: ServiceConfig, owner: OwnerSocket | None = None) -> Iterator[Served]:
    """Serve `engine` on a free port, and on the owner's socket where one is given, until the block ends."""
    listening = bind(service.host, 0)
    ring = LogRing()
    app = App(engine, service, "0.1.0", ring)
    server = AppServer(app, owner)
    thread = threading.Thread(target=server.run, args=(listening.sockets,), name="served", daemon=True)
    thread.start()
    try:
        assert server.ready.wait(LONG_S)
        yield Served(listening.url, listening.port, app, ring)
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(LONG_S)
        listening.close()
