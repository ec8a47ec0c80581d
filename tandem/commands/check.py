"""`tandem check batch | interleave | early-close | parking`: proof that batch neighbours do not change a text."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
import typer

from tandem import experiments, output
from tandem.client.wire import Address
from tandem.commands.options import JsonOption, OwnOption, UrlOption
from tandem.exits import Exit
from tandem.experiments import Finding
from tandem.service.own_engine import engine_for
from tandem.settings.origins import NO_FLAGS, Flags

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Experiment = Callable[[Address, int], Coroutine[Any, Any, list[Finding]]]

ModelOption = Annotated[str | None, typer.Option("--model", metavar="NAME|PATH", help="The model of its own engine.")]
SlotsOption = Annotated[int, typer.Option("--parallel", metavar="N", min=2, help="The slots of its own engine.")]
TokensOption = Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer at most.")]


class CheckReport(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    check: str
    held: bool
    findings: list[Finding]


@app.callback()
def check() -> None:
    """Prove that batch neighbours do not change a text.

    Each check talks to the engine that runs, or to one of its own where none does. Exit 1 on a difference, 5 where
    the situation did not occur.
    """


def _add(name: str, experiment: Experiment, slots: int, help_text: str) -> None:
    """Add the command of an experiment. Its own engine has `slots` slots where none are asked for."""

    @app.command(name, help=help_text)
    def run(
        *,
        url: UrlOption = None,
        own: OwnOption = False,
        model: ModelOption = None,
        parallel: SlotsOption = slots,
        tokens: TokensOption = 64,
        json: JsonOption = False,
    ) -> None:
        flags = Flags({"model": model}) if model is not None else NO_FLAGS
        with engine_for(url, flags, slots=parallel, own=own) as address:
            findings = asyncio.run(experiment(address, tokens))
        held = all(finding.held for finding in findings)
        if json:
            output.emit_json(CheckReport(name, held, findings))
        else:
            for finding in findings:
                output.emit(f"{'ok    ' if finding.held else 'DIFFER'} {finding.what}: {finding.detail}")
        raise typer.Exit(Exit.OK if held else Exit.FAILURE)


_add("batch", experiments.batch, 4, "Greedy and seeded answers are the same alone and all at once.")
_add("interleave", experiments.interleave, 2, "An answer is the same while a long prompt is read beside it.")
_add("early-close", experiments.early_close, 2, "A client that leaves frees its slot and changes nothing beside it.")
_add("parking", experiments.parking, 2, "A resumed turn is the same as one read cold.")
