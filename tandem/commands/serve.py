"""`tandem serve`: the engine in the foreground."""

from __future__ import annotations

import faulthandler
import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated

import typer

from engine.process.keyring import SecretsUnusable
from engine.process.listening import HostNotAllowed, PortInUse
from engine.process.state_dir import StateDirLocked, StateDirUnusable
from tandem import output
from tandem.client.register import registered, write_launch
from tandem.exits import CommandError, Exit
from tandem.service.claims import end_with
from tandem.service.preflight import find_model, refuse_early
from tandem.settings.engine_config import crowded, engine_config, service_config, state_dir
from tandem.settings.flags import with_engine_flags
from tandem.settings.origins import Flags, Resolved, resolve

log = logging.getLogger("tandem.serve")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_engine_flags()
def serve(
    flags: Flags,
    unlisted: Annotated[
        bool, typer.Option("--unlisted", help="Do not let other commands find it (for engines that bench starts).")
    ] = False,
    supervised: Annotated[int | None, typer.Option("--supervised", metavar="PID", hidden=True)] = None,
    owned: Annotated[int | None, typer.Option("--owned", metavar="PID", hidden=True)] = None,
) -> None:
    """Serve a model in the foreground, until Ctrl-C or SIGTERM.

    Settings come from flags, the environment, and the files that `tandem config show --origin` names.
    """
    # Imported late: `tandem serve --help` needs no structlog.
    from tandem.service import logging_setup as logs

    resolved = resolve(flags) if owned is None else without_keys(resolve(flags))
    settings = resolved.settings
    refuse_early(resolved, supervised=supervised is not None)
    model, name = find_model(settings.model)
    writer = output.hand_over(logs.configure(settings.log_format))
    for text in (*resolved.notes, *filter(None, [crowded(settings)])):
        log.warning(text)
    folder = state_dir(settings)
    # SIGABRT then writes the stack of every thread into the log of a hung engine.
    faulthandler.enable(logs.STDERR)
    if (parent := supervised if supervised is not None else owned) is not None:
        end_with(parent)

    from engine.service import run

    try:
        with nullcontext() if unlisted or supervised is not None else registered(folder) as unregistered:
            unwritten = [*filter(None, [unregistered, write_launch(folder, flags)])]
            code = run(
                engine_config(settings, model, name),
                service_config(settings),
                log_state=writer.state,
                unwritten=unwritten,
            )
    except (PortInUse, StateDirLocked) as why:
        raise CommandError(str(why), Exit.REFUSED) from why
    except (HostNotAllowed, SecretsUnusable, StateDirUnusable) as why:
        raise CommandError(str(why), Exit.USAGE) from why
    raise typer.Exit(code)


def without_keys(resolved: Resolved) -> Resolved:
    """The settings of an engine that serves one command alone: the user's API keys are not for it."""
    settings = resolved.settings
    return replace(resolved, settings=replace(settings, secrets_file=state_dir(settings) / "secrets.json"))
