"""Opens the console: what was asked for on the command line, the connections, and the exit code."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from console.client import BadAddress, HealthClient
from console.look import ThemeName

if TYPE_CHECKING:
    from console.recording import NotARecording, Recorder

# What stands by then is kept for good: the modules and the widgets.
SETTLED_S = 2.0
# A snapshot of a crowded engine makes some thousand objects, which go when the next one comes: no reason to search.
_YOUNG = 50_000
# Exit codes: a command line that does not parse; something that failed while it ran.
USAGE = 2
FAILURE = 1


@dataclass(frozen=True)
class Options:
    """What a person asked for. `urls` are the engines to watch, the first one shown; `writes` allows orders to them.

    Without `mouse` the terminal's own selection works. What is seen goes to the file `record`, where one is named.
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
    from console.recording import NotARecording, Recorder

    try:
        with Recorder(file) as recorder:
            code = asyncio.run(_run(options, recorder))
    except NotARecording as error:
        return refused(error)
    if recorder.trouble is not None:
        print(f"tandem console: {recorder.trouble}", file=sys.stderr)
    return code


def refused(error: BadAddress | NotARecording) -> int:
    """Say why the console does not open, in one line; returns the exit code."""
    if isinstance(error, BadAddress):
        print(f"tandem console: {error}", file=sys.stderr)
        return USAGE
    print(f"tandem console: --record: {error}", file=sys.stderr)
    return FAILURE if error.damaged else USAGE


def _print(url: str, options: Options, printed: Printed) -> int:
    from console.once import print_once, print_snapshot

    socket_path = options.sockets.get(url)
    if printed is Printed.JSON:
        return print_snapshot(url, socket_path=socket_path)
    return print_once(url, theme=options.theme, socket_path=socket_path)


@contextmanager
def _settling() -> Iterator[None]:
    """No search for garbage before the first frame, few later, and none ever among what the start made. Inside a
    running loop."""

    def settled() -> None:
        gc.freeze()
        gc.set_threshold(_YOUNG)
        gc.enable()

    gc.disable()
    timer = asyncio.get_running_loop().call_later(SETTLED_S, settled)
    try:
        yield
    finally:
        timer.cancel()
        gc.enable()


async def _run(options: Options, recorder: Recorder | None = None) -> int:
    async with AsyncExitStack() as stack:
        stack.enter_context(_settling())
        from console.app import ConsoleApp

        clients = [
            await stack.enter_async_context(HealthClient(url, recorder, options.sockets.get(url)))
            for url in options.urls
        ]
        app = ConsoleApp(clients, theme=options.theme, recorder=recorder, writes=options.writes)
        result = await app.run_async(mouse=options.mouse)
    return app.return_code or 0 if result is None else result
