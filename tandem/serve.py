"""`tandem serve`: the engine in the foreground."""

from __future__ import annotations

import faulthandler
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from engine.process.keyring import SecretsUnusable
from engine.process.listening import HostNotAllowed, PortInUse
from engine.process.state_dir import StateDirLocked, StateDirUnusable
from tandem import output
from tandem.configure import check_free, check_host, crowded, engine_config, service_config, state_dir
from tandem.exits import CommandError, Exit
from tandem.flags import with_engine_flags
from tandem.floors import check_floors
from tandem.origins import Flags, Resolved, resolve
from tandem.register import registered, write_launch
from tandem.service.claims import check_unclaimed, end_with

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
    # Brings structlog, which the commands that share this module's checks do without.
    from tandem import logs

    resolved = resolve(flags)
    settings = resolved.settings
    refuse_early(resolved, supervised=supervised is not None)
    model, name = find_model(settings.model)
    writer = output.hand_over(logs.configure(settings.log_format))
    for text in (*resolved.notes, *filter(None, [crowded(settings)])):
        log.warning(text)
    folder = state_dir(settings)

    # Whoever ends a hung engine with SIGABRT finds in the log where every thread stood.
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


def refuse_early(resolved: Resolved, *, supervised: bool = False) -> None:
    """Refuse what could not be served anyway, before a model is fetched or read. `supervised`: for an engine whose
    supervisor holds the port and the state directory for it."""
    check_host(resolved)
    check_free(resolved.settings)
    if not supervised:
        check_floors(resolved)
        check_unclaimed(resolved.settings.port, state_dir(resolved.settings))


def find_model(wanted: str) -> tuple[Path, str]:
    """The file and the name of a model, fetched with a progress bar where it is known but not here yet."""
    from engine.models.catalog import BUILT_IN, FetchFailed, UnknownModel, pull, resolve

    try:
        path = resolve(wanted)
        if wanted in BUILT_IN and (refusal := BUILT_IN[wanted].refusal):
            raise CommandError(f"{wanted} cannot be served: {refusal}")
        if wanted in BUILT_IN and not path.is_file():
            output.note(f"fetching {wanted} once, into {path.parent}")
            with output.progress(wanted) as report:
                path = pull(wanted, report)
    except UnknownModel as why:
        raise CommandError(str(why), Exit.USAGE) from why
    except FetchFailed as why:
        raise CommandError(str(why)) from why
    return path, wanted if wanted in BUILT_IN else path.stem
