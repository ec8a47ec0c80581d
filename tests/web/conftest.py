"""A console served to browsers as a person starts it, an engine behind it, and a Chromium."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support import fake_health
from tests.support.fake_health import FakeHealth
from tests.web.browser import WAIT_S, Browser, chromium


@dataclass(frozen=True)
class Served:
    """A running `tandem console --web`: its address with the token, and its process."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def origin(self) -> str:
        return self.url.partition("/?")[0]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def end(self, signum: int = signal.SIGTERM) -> tuple[int, str]:
        """Send it a signal; its exit code and what it said since the address."""
        self.process.send_signal(signum)
        _, said = await asyncio.wait_for(self.process.communicate(), WAIT_S)
        return self.process.returncode or 0, said.decode()


@asynccontextmanager
async def served(url: str, *flags: str) -> AsyncIterator[Served]:
    """The command for the engine at `url` on a free port."""
    command = ["-m", "tandem", "console", "--web", "--web-port", "0", "--url", url, *flags]
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=kept
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(WAIT_S):
            address = (await process.stderr.readline()).decode().strip()
            await process.stderr.readline()
        yield Served(address, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[tuple[Browser, Served, FakeHealth]]:
    """A Chromium beside a console of an engine where one request waits for memory."""
    with FakeHealth(fake_health.waiting) as engine:
        async with served(engine.url) as console, chromium(folder) as browser:
            yield browser, console, engine
