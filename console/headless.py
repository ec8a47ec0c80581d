"""Recording without a screen: for a box that is watched over night."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from console.history.recorder import NotARecording, Recorder
from console.main import FAILURE, refused
from console.session.client import BadAddress, EngineClient, Unreachable
from console.session.session import POLL_S, RETRY_S


def run_headless(url: str, record: Path, socket_path: str | None = None) -> int:
    """Record the engine at `url` (through the owner's socket at `socket_path`, where there is one) until SIGINT or
    SIGTERM; returns the exit code, 1 where recording had to stop."""
    try:
        with Recorder(record) as recorder:
            print(f"recording {url} to {record}; Ctrl-C ends it", file=sys.stderr, flush=True)
            asyncio.run(_record(url, socket_path, recorder))
    except (BadAddress, NotARecording) as error:
        return refused(error)
    if recorder.trouble is not None:
        print(f"tandem console: {recorder.trouble}", file=sys.stderr)
        return FAILURE
    return 0


async def _record(url: str, socket_path: str | None, recorder: Recorder) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    async with EngineClient(url, recorder, socket_path) as client:
        while not stop.is_set() and recorder.trouble is None:
            pause = POLL_S
            try:
                await client.fetch()
            except Unreachable:
                pause = RETRY_S
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                continue
