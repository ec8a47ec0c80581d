"""`tandem hold`: run a command with the box to itself, and serve again afterwards, whatever happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from tandem import output
from tandem.service.hold import hold_box

app = typer.Typer(add_completion=False, rich_markup_mode=None)

CANNOT_RUN_EXIT, NOT_FOUND_EXIT = 126, 127
"""What a shell exits with for such a command."""
MOST_MINUTES = 365 * 1440


@app.command()
def hold(
    minutes: Annotated[
        float, typer.Argument(metavar="MINUTES", help="The most that the command may take.", min=0.01, max=MOST_MINUTES)
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments, after --.")],
    drain: Annotated[
        bool, typer.Option("--drain", help="Where requests run, let them end first, as `stop` does.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, help="How long to wait until the engine is ready again.")
    ] = 180.0,
) -> None:
    """Stop the engine, run a command with the box to itself, start the engine again with the same settings.

    The exit code is the command's; 124 where it took longer than MINUTES and was ended, 5 where requests run and
    --drain was not given.
    """
    if shutil.which(command[0]) is None:
        # Refused as a shell does, before an engine is stopped for it.
        there = Path(command[0]).exists()
        output.error(f"{command[0]} cannot be run: {'not an executable file' if there else 'no such command'}")
        raise typer.Exit(CANNOT_RUN_EXIT if there else NOT_FOUND_EXIT)
    raise typer.Exit(hold_box(minutes * 60, command, drain=drain, wait_s=wait))
