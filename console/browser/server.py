"""Serves the console to browsers: textual-serve's page and protocol behind our gate, one console process a tab."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server, to_int

from console.browser.child import ConsoleChild
from console.browser.gate import Gate

HOST = "127.0.0.1"
# Each open tab is a process of some 90 MB.
MOST_TABS = 8
_PORT_HELD = 5


class ConsoleServer(Server):
    """`argv` runs the console of one tab. Port 0 takes a free one. `run` returns the exit code."""

    def __init__(self, argv: Sequence[str], port: int) -> None:
        super().__init__("", host=HOST, port=port, title="tandem console", templates_path=Path(__file__).parent)
        self._argv = tuple(argv)
        self._gate = Gate()
        self._children: set[ConsoleChild] = set()

    def run(self) -> int:
        """Serve until SIGINT, SIGTERM or SIGHUP; every tab's console has ended when it returns."""
        self.initialize_logging()
        # The output of a console that failed to start must not go to stdout.
        with redirect_stdout(sys.stderr):
            return asyncio.run(self._serve())

    def initialize_logging(self) -> None:
        logging.basicConfig(level=logging.WARNING, format="tandem console: %(message)s")

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing yet: the address is known once the port is open."""

    async def on_shutdown(self, app: web.Application) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run one tab's console for as long as its websocket is open."""
        if len(self._children) >= MOST_TABS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_TABS} tabs are open already")
        websocket = web.WebSocketResponse(heartbeat=15)
        child = ConsoleChild(self._argv, websocket, self.download_manager)
        self._children.add(child)
        try:
            await websocket.prepare(request)
            await child.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
            await self._process_messages(websocket, child)
        finally:
            await child.stop()
            self._children.discard(child)
        return websocket

    @aiohttp_jinja2.template("index.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        """The page, with addresses of the name by which the browser knows this server."""
        return {
            "title": self.title,
            "font_size": max(6, min(to_int(request.query.get("fontsize", ""), 16), 60)),
            "websocket": f"ws://{request.headers['Host']}/ws",
        }

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        # A browser asks for it on behalf of pages that name no icon.
        app.router.add_get("/favicon.ico", _no_icon)
        self._gate.install(app)
        return app

    async def _serve(self) -> int:
        stop = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self.host, self.port).start()
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                print(f"tandem console: --web-port {self.port}: {os.strerror(error.errno)}", file=sys.stderr)
                return _PORT_HELD
            self.port = runner.addresses[0][1]
            print(f"http://{self.host}:{self.port}/?token={self._gate.token}", file=sys.stderr)
            print("Open this address in a browser of this box; Ctrl-C ends the console.", file=sys.stderr, flush=True)
            await stop.wait()
        finally:
            await runner.cleanup()
        return 0


async def _no_icon(request: web.Request) -> web.Response:
    return web.Response(status=204)
