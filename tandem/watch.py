"""`tandem console`: opens the console on the engine that runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tandem.exits import CommandError, Exit
from tandem.register import address_of

WEB_PORT = 8900

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def console(
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The engine's address.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame of text and end.")] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Keep everything seen in FILE, for --replay.")
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="With --record: show nothing, only record.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve the console to browsers of this box.")] = False,
    web_port: Annotated[int, typer.Option("--web-port", metavar="PORT", help="Where --web listens; 0: a free one.")] = (
        WEB_PORT
    ),
) -> None:
    """Watch lanes, memory, roles and the queue, live. Exit 3 where nothing answers to --once."""
    if headless or (record is not None and once):
        if record is None or once:
            raise CommandError("--headless goes with --record, and --record not with --once", Exit.USAGE)
        from console.headless import run_headless

        raise typer.Exit(run_headless(address_of(url).url, record))
    if web:
        if once or record is not None:
            raise CommandError(
                "--web goes with neither --once nor --record (--record --headless runs beside it)", Exit.USAGE
            )
        from console.browser import serve

        inner = [sys.executable, "-m", "tandem", "console", "--url", address_of(url).url]
        raise typer.Exit(serve(inner, web_port))
    from console.browser import in_browser

    if not once and not in_browser() and not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise CommandError("the console needs a terminal; --once prints one frame of text", Exit.USAGE)
    from console.app import run

    raise typer.Exit(run(address_of(url).url, once=once, record=record))
