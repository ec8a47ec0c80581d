"""One tab's console: a process of its own, which ends with the tab, with the server, or by itself."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from console.browser import DRIVER

# How long each way of asking it to end may take, the gentlest first.
_PATIENCE_S = 3.0
_LARGEST = (1000, 400)


class ConsoleChild(AppService):
    """`argv` runs the console; its screen goes to `websocket`."""

    def __init__(self, argv: Sequence[str], websocket: web.WebSocketResponse, downloads: DownloadManager) -> None:
        super().__init__(
            "",
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=self._hang_up,
            download_manager=downloads,
        )
        self._argv = tuple(argv)
        self._websocket = websocket

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return super()._build_environment(*_clamped(width, height)) | {"TEXTUAL_DRIVER": DRIVER}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        # A process group of its own: the server passes Ctrl-C on.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._build_environment(width, height),
            start_new_session=True,
        )
        self._stdin = process.stdin
        return process

    async def set_terminal_size(self, width: int, height: int) -> None:
        await super().set_terminal_size(*_clamped(width, height))

    async def run(self) -> None:
        await super().run()
        # Also where it ended without saying so.
        await self._hang_up()

    async def on_data(self, payload: bytes) -> None:
        # Read on after the tab is closed: a full pipe would keep the console from ending.
        with suppress(ConnectionError, RuntimeError):
            await super().on_data(payload)

    async def stop(self) -> None:
        """Ask it to end, then make it; returns when it is gone."""
        process, task = self._process, self._task
        if process is None or task is None:
            return
        await self.send_meta({"type": "quit"})
        for harder in (process.terminate, process.kill, None):
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await process.wait()
                    break
            if harder is not None:
                with suppress(ProcessLookupError):
                    harder()
        await task

    async def _hang_up(self) -> None:
        await self._websocket.close()


def _clamped(width: int, height: int) -> tuple[int, int]:
    return max(1, min(width, _LARGEST[0])), max(1, min(height, _LARGEST[1]))
