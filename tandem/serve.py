"""`tandem serve`: the engine in the foreground."""

from __future__ import annotations

from pathlib import Path

import typer

from engine.state_dir import StateDirLocked
from tandem import output
from tandem.configure import check_free, check_host, engine_config, service_config, state_dir
from tandem.exits import CommandError, Exit
from tandem.flags import with_engine_flags
from tandem.origins import Flags, Resolved, resolve
from tandem.register import registered, write_launch

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_engine_flags()
def serve(flags: Flags) -> None:
    """Serve a model in the foreground, until Ctrl-C or SIGTERM.

    Settings come from flags, the environment, and the files that `tandem config show --origin` names.
    """
    resolved = prepare(flags)
    settings = resolved.settings
    model, name = find_model(settings.model)
    folder = state_dir(settings)

    from engine.service import PortInUse, run

    try:
        with registered(folder):
            write_launch(folder, flags)
            code = run(engine_config(settings, model, name), service_config(settings))
    except (PortInUse, StateDirLocked) as why:
        raise CommandError(str(why), Exit.REFUSED) from why
    raise typer.Exit(code)


def prepare(flags: Flags) -> Resolved:
    """Resolve the settings, say what a person should know, and refuse what could not be served anyway."""
    resolved = resolve(flags)
    for text in resolved.notes:
        output.warn(text)
    check_host(resolved)
    check_free(resolved.settings)
    return resolved


def find_model(wanted: str) -> tuple[Path, str]:
    """The file and the name of a model, fetched with a progress bar where it is known but not here yet."""
    raise NotImplementedError(wanted)
