"""Opens the console, prints a frame, records without a screen, or replays; each returns an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from console.draw.theme import ThemeName
from console.history.recorder import NotARecording, Recorder
from console.history.recording import Recording
from console.history.tape import Tape
from console.session.client import BadAddress, EngineClient, Unreachable
from console.session.session import POLL_S, RETRY_S

# Exit codes: a command line that does not parse; something that failed while it ran.
USAGE = 2
FAILURE = 1


@dataclass(frozen=True)
class Options:
    """The command line. `urls` are the engines to watch, the first one shown; `writes` allows actions on them.

    Without `mouse` the terminal's own selection works. Snapshots are recorded to the file `record`, where one is named.
    `sockets` are the owner's sockets of this user's own engines, by url: they are asked through these.
    """

    urls: tuple[str, ...]
    theme: ThemeName = ThemeName.DARK
    mouse: bool = True
    writes: bool = False
    record: Path | None = None
    sockets: Mapping[str, str] = field(default_factory=dict)


class Printed(StrEnum):
    """What is printed in place of opening the console."""

    FRAME = "frame"
    JSON = "json"


def run(options: Options, printed: Printed | None = None) -> int:
    """Show the engines until a person leaves; with `printed`, print what each says now. Returns the exit code."""
    try:
        if printed is not None:
            return max(_print(url, options, printed) for url in options.urls)
        return asyncio.run(_run(options)) if options.record is None else _recorded(options, options.record)
    except BadAddress as error:
        return refused(error)


def _recorded(options: Options, file: Path) -> int:
    try:
        with Recorder(file) as recorder:
            code = asyncio.run(_run(options, recorder))
    except NotARecording as error:
        return refused(error)
    if recorder.trouble is not None:
        print(f"tandem console: {recorder.trouble}", file=sys.stderr)
    return code


def refused(error: BadAddress | NotARecording, flag: str = "--record") -> int:
    """Say why the console does not open, in one line; returns the exit code."""
    if isinstance(error, BadAddress):
        print(f"tandem console: {error}", file=sys.stderr)
        return USAGE
    print(f"tandem console: {flag}: {error}", file=sys.stderr)
    return FAILURE if error.damaged else USAGE


def replay(path: Path, *, theme: ThemeName = ThemeName.DARK, mouse: bool = True) -> int:
    """Show a recording until a person leaves; returns the exit code."""
    from console.app.replay import RecordedEngine, ReplayApp

    try:
        with Recording(path) as recording:
            app = ReplayApp(RecordedEngine(path), Tape(recording), theme=theme)
            result = asyncio.run(app.run_async(mouse=mouse))
    except NotARecording as error:
        return refused(error, "--replay")
    return app.return_code or 0 if result is None else result


def replay_refusal(path: Path) -> int | None:
    """The exit code for a file that cannot be replayed, after one line that says why; None for a recording."""
    try:
        Recording(path).close()
    except NotARecording as error:
        return refused(error, "--replay")
    return None


def _print(url: str, options: Options, printed: Printed) -> int:
    from console.once import print_once, print_snapshot

    socket_path = options.sockets.get(url)
    if printed is Printed.JSON:
        return print_snapshot(url, socket_path=socket_path)
    return print_once(url, theme=options.theme, socket_path=socket_path)


async def _run(options: Options, recorder: Recorder | None = None) -> int:
    async with AsyncExitStack() as stack:
        from console.app.app import ConsoleApp

        clients = [
            await stack.enter_async_context(EngineClient(url, recorder, options.sockets.get(url)))
            for url in options.urls
        ]
        app = ConsoleApp(clients, theme=options.theme, recorder=recorder, writes=options.writes)
        result = await app.run_async(mouse=options.mouse)
    return app.return_code or 0 if result is None else result


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
