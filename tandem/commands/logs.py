"""`tandem logs`: the log of the background engine, from its files or from the journal."""

from __future__ import annotations

import os
from typing import Annotated, NoReturn

import typer

from tandem import output
from tandem.client.register import running, usual_state_dir
from tandem.commands.options import StateDirOption
from tandem.exits import CommandError, Exit
from tandem.service.lines import as_json, as_text
from tandem.service.rotation import LOG_NAME, follow, read_back

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def logs(
    state_dir: StateDirOption = None,
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines back.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print each line as a JSON object.")] = False,
) -> None:
    """Show the background engine's log. Exit 3 where there is none."""
    found = [engine for engine in running() if state_dir in (None, engine.state_dir)]
    if len(found) == 1 and found[0].record and found[0].record.unit:
        _show_journal(found[0].record.unit, lines, follow_on=follow_on, json=json)
    folder = state_dir or (found[0].state_dir if len(found) == 1 else usual_state_dir())
    path = folder / LOG_NAME
    try:
        newest_lines, file = read_back(path, lines)
    except FileNotFoundError:
        raise CommandError(f"there is no log at {path}: only `tandem start` writes one", Exit.NOT_RUNNING) from None
    show = as_json if json else as_text
    for line in newest_lines:
        output.emit(show(line))
    if not follow_on:
        file.close()
        return
    for line in follow(path, file):
        output.emit(show(line))


def _show_journal(name: str, lines: int, *, follow_on: bool, json: bool) -> NoReturn:
    """Become journalctl: what a unit's engine writes is in the journal."""
    words = ["journalctl", "--user", "-u", name, "-n", str(lines), "-o", "json" if json else "cat"]
    try:
        os.execvp(words[0], [*words, "-f"] if follow_on else words)
    except OSError as why:
        raise CommandError(f"the log is in the journal (`{' '.join(words)}`): {why.strerror}") from why
