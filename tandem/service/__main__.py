"""The supervisor's process: `python -m tandem.service` with the flags of `tandem serve`. `tandem start` runs it."""

from __future__ import annotations

import os
import resource
import sys
from typing import Annotated

import msgspec
import typer

from tandem import output
from tandem.client.register import registered, write_launch
from tandem.client.unrecorded import configured_address
from tandem.exits import CommandError
from tandem.service.claims import claimed
from tandem.service.rotation import LOG_NAME, RotatingLog
from tandem.service.supervisor import HealthProbe, Supervisor
from tandem.service.watchdog import Policy
from tandem.settings.engine_config import state_dir
from tandem.settings.flags import to_arguments, with_engine_flags
from tandem.settings.origins import Flags, resolve

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_engine_flags()
def supervise(
    flags: Flags,
    policy: Annotated[str, typer.Option("--policy", metavar="JSON", help="Other thresholds of the watchdog.")] = "{}",
) -> None:
    """Run `tandem serve` with these flags and watch over it."""
    settings = resolve(flags).settings
    folder = state_dir(settings)
    command = [sys.executable, "-m", "tandem", "serve", f"--supervised={os.getpid()}", *to_arguments(flags)]
    # A hung engine is ended with SIGABRT for its stacks; a file as large as its memory is not wanted with them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with claimed(settings.port, folder), registered(folder) as unregistered, RotatingLog(folder / LOG_NAME) as log:
        # Before its engine is there to do it: whoever asks meanwhile must not find the flags of an earlier start.
        unwritten = [*filter(None, [unregistered, write_launch(folder, flags)])]
        log.rotate()
        supervisor = Supervisor(
            command,
            folder,
            log,
            policy=msgspec.json.decode(policy, type=Policy),
            drain_s=settings.drain_timeout,
            pid=os.getpid(),
            as_json=settings.log_format != "text",
            probe=HealthProbe(configured_address(settings, folder)),
        )
        for sentence in unwritten:
            supervisor.say("warning", sentence)
        code = supervisor.run()
    raise typer.Exit(code)


if __name__ == "__main__":
    output.own_streams()
    try:
        app()
    except CommandError as why:
        output.error(why.message)
        sys.exit(why.code)
    finally:
        output.finish()
