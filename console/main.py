"""Opens the console: what was asked for on the command line, the connections, and the exit code."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from console.client import BadAddress, HealthClient
from console.look import ThemeName
from console.recording import NotARecording, Recorder

# Exit codes: a command line that does not parse; something that failed while it ran.
USAGE = 2
FAILURE = 1


@dataclass(frozen=True)
class Options:
    """What a person asked for. `urls` are the engines to watch, the first one shown; `writes` allows orders to them.

    Without `mouse` the terminal's own selection works. What is seen goes to the file `record`, where one is named.
    """

    urls: tuple[str, ...]
    theme: ThemeName = ThemeName.DARK
    mouse: bool = True
    writes: bool = False
    record: Path | None = None


class Printed(StrEnum):
    """What is printed in place of opening the console."""

    FRAME = "frame"
    JSON = "json"


def run(options: Options, printed: Printed | None = None) -> int:
    """Show the engines until a person leaves; with `printed`, print what each says now. Returns the exit code."""
    try:
        if printed is not None:
            return max(_print(url, options, printed) for url in options.urls)
        if options.record is None:
            return asyncio.run(_run(options))
        with Recorder(options.record) as recorder:
            code = asyncio.run(_run(options, recorder))
        if recorder.trouble is not None:
            print(f"tandem console: {recorder.trouble}", file=sys.stderr)
        return code
    except (BadAddress, NotARecording) as error:
        return refused(error)


def refused(error: BadAddress | NotARecording) -> int:
    """Say why the console does not open, in one line; returns the exit code."""
    if isinstance(error, BadAddress):
        print(f"tandem console: {error}", file=sys.stderr)
        return USAGE
    print(f"tandem console: --record: {error}", file=sys.stderr)
    return FAILURE if error.damaged else USAGE


def _print(url: str, options: Options, printed: Printed) -> int:
    from console.once import print_once, print_snapshot

    return print_snapshot(url) if printed is Printed.JSON else print_once(url, theme=options.theme)


async def _run(options: Options, recorder: Recorder | None = None) -> int:
    from console.app import ConsoleApp

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(HealthClient(url, recorder)) for url in options.urls]
        app = ConsoleApp(clients, theme=options.theme, recorder=recorder, writes=options.writes)
        result = await app.run_async(mouse=options.mouse)
    return app.return_code or 0 if result is None else result
