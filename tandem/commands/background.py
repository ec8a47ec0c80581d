"""`tandem start / stop / restart`: the engine as a background service of this user."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tandem import output
from tandem.client.register import Running, find_engine, read_launch, running, usual_state_dir
from tandem.commands.options import StateDirOption
from tandem.exits import CommandError, Exit
from tandem.service import unit
from tandem.service.hold import remove_note, restore_after_crash
from tandem.service.launching import check_restartable, end_engine, environment_of, launch, working_in
from tandem.settings.flags import with_engine_flags
from tandem.settings.origins import Flags

app = typer.Typer(add_completion=False, rich_markup_mode=None)

WaitOption = Annotated[float, typer.Option("--wait", metavar="S", min=0, help="How long to wait until it is ready.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", min=0, help="How long to wait before it is killed. [drain_timeout + 15]"),
]


@app.command()
@with_engine_flags()
def start(
    flags: Flags,
    wait: WaitOption = 180.0,
    another: Annotated[bool, typer.Option("--another", help="Start beside an engine that already runs.")] = False,
) -> None:
    """Start the engine in the background under a supervisor, and wait until it is ready."""
    if not another and (others := running()):
        raise CommandError(
            f"an engine of yours already runs: {', '.join(map(str, others))}; "
            "stop it, or add --another with a --port and --state-dir",
            Exit.REFUSED,
        )
    if not (flags.values or flags.profile or flags.env_file) and restore_after_crash(wait):
        return
    launch(flags, wait_s=wait)
    remove_note()


@app.command()
def stop(state_dir: StateDirOption = None, timeout: TimeoutOption = None) -> None:
    """Let running requests end, then stop the engine; kill it when that takes too long."""
    end_engine(find_engine(state_dir), timeout)
    output.note("stopped")


@app.command()
def restart(state_dir: StateDirOption = None, timeout: TimeoutOption = None, wait: WaitOption = 180.0) -> None:
    """Stop the engine and start it again with the flags and variables it was started with."""
    environ = dict(os.environ)
    engine: Running | None = None
    try:
        engine = find_engine(state_dir)
    except CommandError as why:
        if why.code != Exit.NOT_RUNNING:
            raise
    folder = engine.state_dir if engine else state_dir or usual_state_dir()
    if engine is not None:
        if engine.record is not None and engine.record.unit is not None:
            unit.manage("restart", engine.record.unit)
            output.note(f"{engine.record.unit} was restarted")
            return
        environ = environment_of(engine)
    before = read_launch(folder)
    if before is None:
        left = (
            "how it was started is not known any more; `tandem stop` ends it" if engine else "`tandem start` starts one"
        )
        raise CommandError(f"no start is recorded in the state directory {folder}; {left}", Exit.NOT_RUNNING)
    # Checked before the engine is stopped: it must be able to start again.
    check_restartable(before, environ)
    if engine is not None:
        end_engine(engine, timeout)
    with working_in(before.folder):
        launch(before.to_flags(), wait_s=wait, environ=environ)
