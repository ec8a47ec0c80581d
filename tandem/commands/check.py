"""`tandem check batch | interleave | early-close | parking`: proof that batch neighbours do not change a text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import typer

from tandem import experiments as checks
from tandem import output
from tandem.client.wire import Address
from tandem.commands.options import JsonOption, OwnOption, UrlOption
from tandem.exits import Exit
from tandem.experiments import Finding
from tandem.service.own_engine import engine_for
from tandem.settings.origins import NO_FLAGS, Flags

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Experiment = Callable[[Address, int], Awaitable[list[Finding]]]

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


@app.command()
def batch(
    *,
    url: UrlOption = None,
    own: OwnOption = False,
    model: ModelOption = None,
    parallel: SlotsOption = 4,
    tokens: TokensOption = 64,
    json: JsonOption = False,
) -> None:
    """Greedy and seeded answers are the same alone and all at once."""
    _run("batch", checks.batch, CheckTarget(url, own, model, parallel), tokens, json=json)


@app.command()
def interleave(
    *,
    url: UrlOption = None,
    own: OwnOption = False,
    model: ModelOption = None,
    parallel: SlotsOption = 2,
    tokens: TokensOption = 64,
    json: JsonOption = False,
) -> None:
    """An answer is the same while a long prompt is read beside it."""
    _run("interleave", checks.interleave, CheckTarget(url, own, model, parallel), tokens, json=json)


@app.command("early-close")
def early_close(
    *,
    url: UrlOption = None,
    own: OwnOption = False,
    model: ModelOption = None,
    parallel: SlotsOption = 2,
    tokens: TokensOption = 64,
    json: JsonOption = False,
) -> None:
    """A client that leaves frees its slot and changes nothing beside it."""
    _run("early-close", checks.early_close, CheckTarget(url, own, model, parallel), tokens, json=json)


@app.command()
def parking(
    *,
    url: UrlOption = None,
    own: OwnOption = False,
    model: ModelOption = None,
    parallel: SlotsOption = 2,
    tokens: TokensOption = 64,
    json: JsonOption = False,
) -> None:
    """A resumed turn is the same as one read cold."""
    _run("parking", checks.parking, CheckTarget(url, own, model, parallel), tokens, json=json)


class CheckTarget(msgspec.Struct, frozen=True):
    """The engine that a check talks to."""

    url: str | None
    own: bool
    model: str | None
    parallel: int


def _run(name: str, experiment: Experiment, target: CheckTarget, tokens: int, *, json: bool) -> None:
    flags = Flags({"model": target.model}) if target.model is not None else NO_FLAGS
    with engine_for(target.url, flags, slots=target.parallel, own=target.own) as address:
        findings = asyncio.run(_await(experiment(address, tokens)))
    held = all(finding.held for finding in findings)
    if json:
        output.emit_json(CheckReport(name, held, findings))
    else:
        for finding in findings:
            output.emit(f"{'ok    ' if finding.held else 'DIFFER'} {finding.what}: {finding.detail}")
    raise typer.Exit(Exit.OK if held else Exit.FAILURE)


async def _await(findings: Awaitable[list[Finding]]) -> list[Finding]:
    return await findings
