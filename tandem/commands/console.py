"""`tandem console`: opens the console on the engine that runs, or on several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.exits import CommandError, Exit

if TYPE_CHECKING:
    from console.draw.theme import ThemeName
    from tandem.client.wire import Address

WEB_PORT = 8900

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def console(
    *,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="An engine's address; give it again to watch several."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame of text and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --once: print the snapshot as it came.")] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Keep everything seen in FILE, for --replay.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Show what FILE recorded, in place of an engine.")
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="With --record: show nothing, only record.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve the console to browsers of this box.")] = False,
    web_port: Annotated[
        int, typer.Option("--web-port", metavar="PORT", min=0, max=65535, help="Where --web listens; 0: a free one.")
    ] = (WEB_PORT),
    theme: Annotated[
        str,
        typer.Option(
            "--theme",
            metavar="dark|light|ascii|colour-blind",
            envvar="TANDEM_CONSOLE_THEME",
            show_envvar=False,
            help="Colours and signs; without the flag, what TANDEM_CONSOLE_THEME names.",
        ),
    ] = "dark",
    mouse: Annotated[
        bool, typer.Option("--mouse/--no-mouse", help="Without it the terminal's own selection works.")
    ] = True,
    write: Annotated[
        bool, typer.Option("--write", help="Let the console cancel requests, drain, load roles; it asks first.")
    ] = False,
) -> None:
    """Watch lanes, memory, roles and the queue, live. Exit 3 where nothing answers to --once."""
    if json and not once:
        raise CommandError("--json goes with --once", Exit.USAGE)
    if replay is not None and (url or once or headless or record is not None or write):
        raise CommandError("--replay goes with none of --url, --once, --record, --headless and --write", Exit.USAGE)
    if headless or (record is not None and once):
        if record is None or once:
            raise CommandError("--headless goes with --record, and --record not with --once", Exit.USAGE)
        from console.main import run_headless

        only = _addresses(url or [], several=False)[0]
        raise typer.Exit(run_headless(only.url, record, _reachable(only)))
    chosen = _theme(theme)
    addresses = () if replay is not None else _addresses(url or [], several=not once)
    if record is not None and len(addresses) > 1:
        raise CommandError("--record keeps one engine; name it with --url", Exit.USAGE)
    if replay is not None:
        from console.main import replay_refusal

        # Checked before the terminal: a recording that cannot be shown needs none.
        if (code := replay_refusal(replay)) is not None:
            raise typer.Exit(code)
    if web:
        if once or record is not None:
            raise CommandError(
                "--web goes with neither --once nor --record (--record --headless runs beside it)", Exit.USAGE
            )
        from console.browser import serve

        # Without --url each tab's console finds the engines itself, and their sockets with them.
        named = [word for address in addresses if url for word in ("--url", address.url)]
        named += ["--replay", str(replay.absolute())] if replay is not None else []
        inner = [sys.executable, "-m", "tandem", "console", *named, "--theme", chosen.value]
        raise typer.Exit(serve([*inner, "--write"] if write else inner, web_port))
    from console.browser import in_browser

    if not once and not in_browser() and not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise CommandError("the console needs a terminal; --once prints one frame of text", Exit.USAGE)
    if replay is not None:
        from console.main import replay as play

        raise typer.Exit(play(replay, theme=chosen, mouse=mouse))
    from console.main import Options, Printed, run

    printed = Printed.JSON if json else Printed.FRAME if once else None
    sockets = {address.url: path for address in addresses if (path := _reachable(address)) is not None}
    urls = tuple(address.url for address in addresses)
    raise typer.Exit(
        run(Options(urls, theme=chosen, mouse=mouse, writes=write, record=record, sockets=sockets), printed)
    )


def _theme(name: str) -> ThemeName:
    from console.draw.theme import ThemeName

    if name not in list(ThemeName):
        raise CommandError(f"--theme is {name!r}; allowed: {', '.join(ThemeName)}", Exit.USAGE)
    return ThemeName(name)


def _reachable(address: Address) -> str | None:
    """A path at which the owner's socket can be connected; None for an engine that is asked over TCP."""
    from engine.process.owner_socket import address_for

    return None if address.socket is None else address_for(address.socket)


def _addresses(urls: list[str], *, several: bool) -> tuple[Address, ...]:
    """The engines at `urls`. Without any, the engine that runs, or all of them where `several` can be shown."""
    # Imported late: with --url the first frame does not need the settings that the register reads.
    from tandem.client.wire import Address

    if urls:
        return tuple(Address.of(url) for url in urls)
    from tandem.client.register import address_of, running

    found = [Address.of_engine(engine.record) for engine in running() if engine.record is not None]
    return tuple(found) if several and len(found) > 1 else (address_of(None),)
