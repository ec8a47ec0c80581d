"""`tandem doctor`: what this box has and can hold, what would go wrong, and how a client is pointed at the engine."""

from __future__ import annotations

from typing import Annotated

import typer

from tandem import output
from tandem.commands.options import JsonOption
from tandem.doctor.advice import describe_advice
from tandem.doctor.client_setups import CLIENTS, setup_for
from tandem.doctor.examine import examine
from tandem.exits import CommandError, Exit
from tandem.settings.origins import Flags, resolve

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    model: Annotated[str | None, typer.Option("--model", metavar="NAME|PATH", help="The model to advise on.")] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="|".join(CLIENTS), help="Print how this client is set up, changing nothing."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The engine's address, for --client.")] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Measure the GPU's kernels for the model and keep the fastest launch shapes."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check this box and recommend a slot count.

    Exit 1 where something would keep an engine from starting, or no GPU can be tuned, exit 2 for a model that is not
    known.
    """
    resolved = resolve(Flags({"model": model} if model else {}))
    if client is not None:
        if client not in CLIENTS:
            raise CommandError(f"--client is {client!r}; allowed: {', '.join(CLIENTS)}", Exit.USAGE)
        _show_client(client, url, resolved.settings.model, json=json)
        return
    if url is not None:
        raise CommandError("--url goes with --client alone", Exit.USAGE)
    if tune:
        from tandem.doctor.tune import tune as measure

        measure(resolved.settings)
        return
    report = examine(resolved)
    if json:
        output.emit_json(report)
    else:
        for line in report.lines:
            output.emit(f"{line.verdict.value:<5} {line.what:<9} {line.detail}")
        if report.advice is not None:
            output.emit(f"\n{describe_advice(report.advice)}")
    raise typer.Exit(Exit.OK if report.healthy else Exit.FAILURE)


def _show_client(client: str, url: str | None, model: str, *, json: bool) -> None:
    """The snippet is data and may be piped into a file; what it means goes to stderr."""
    setup = setup_for(client, url, model)
    if json:
        output.emit_json(setup)
        return
    output.note(f"{setup.title}: {setup.place}, {setup.format}")
    for change in setup.changes:
        output.note(f"  sets {change}")
    for text in (*setup.notes, *(f"not there yet: {text}" for text in setup.missing)):
        output.note(f"  {text}")
    output.note("")
    output.emit(setup.snippet, end="")
