"""`tandem residency plan / ps / load / unload / journal`: which small models stand beside the engine, and why.

A dry plan needs no engine and always exits 0: it is made on a running engine's figures where one answers, else on the
box's own, and says which. What would change a running engine is refused (exit 5) while engines cannot run roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from console.text.figures import span
from engine.memory.budget import default_floors
from engine.memory.probe import open_probe
from engine.memory.sizes import size
from engine.protocol import Health, Role, Status
from engine.protocol.reports import PlanDecision, PlanReport
from engine.roles.journal import JournalLine, read_journal
from engine.roles.planner import NOT_BUILT, PlanFigures, figures_of, growth_to_come, plan
from engine.roles.residency import Residency, ResidencyFileError, read_residency
from tandem import output
from tandem.client.register import address_of
from tandem.client.wire import NoAnswer, Refused, health
from tandem.commands.options import JsonOption, StateDirOption, UrlOption
from tandem.exits import CommandError, Exit
from tandem.settings.completers import Candidates
from tandem.settings.engine_config import residency_file, state_dir
from tandem.settings.origins import resolve
from tandem.settings.table import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


def _role_names(incomplete: str) -> Candidates:
    try:
        return [(role.name, role.kind) for role in read_residency(residency_file(resolve().settings)).roles]
    except (CommandError, ResidencyFileError, OSError):
        return []


RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="A role's name.", autocompletion=_role_names)]

DRY_RUN = "dry-run"
REAL_ADVICE = "`tandem residency plan --dry-run` says what would be decided"


@dataclass(frozen=True, slots=True)
class Basis:
    """The inputs of a plan: the figures, the loaded roles, and a sentence that says where they come from."""

    figures: PlanFigures
    loaded: frozenset[str]
    summary: str


@app.callback()
def residency() -> None:
    """Which small models fit beside the engine, and why."""


@app.command("plan")
def plan_command(
    mode: Annotated[str | None, typer.Argument(metavar="[dry-run]", help="The same as --dry-run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and say so, change nothing.")] = False,
    url: UrlOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A residency document other than the one in force.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Decide which small models fit, with the numbers and what would make the others fit."""
    if mode not in (None, DRY_RUN):
        raise CommandError(f"residency plan {mode}: no such word; allowed: {DRY_RUN}", Exit.USAGE)
    settings = resolve().settings
    document = _document(settings, file)
    if not (dry_run or mode):
        found = health(address_of(url))
        raise CommandError(
            f"{NOT_BUILT} in the engine ({found.version}), nothing was changed; {REAL_ADVICE}", Exit.REFUSED
        )
    basis = _basis(settings, document, url)
    report = plan(basis.figures, document.roles, loaded=basis.loaded, dry_run=True)
    if json:
        output.emit_json(report)
        output.note(basis.summary)
    else:
        _show(report, basis.summary)


@app.command()
def ps(url: UrlOption = None, json: JsonOption = False) -> None:
    """Say where each small model of the running engine stands."""
    roles = health(address_of(url)).roles
    if json:
        output.emit_json(roles)
    elif roles:
        _show_roles(roles)
    else:
        output.emit("the engine has no small models: its residency document names none")


@app.command()
def load(role: RoleArgument, url: UrlOption = None) -> None:
    """Load a small model into the running engine."""
    _refuse_change(role, url, "loaded")


@app.command()
def unload(role: RoleArgument, url: UrlOption = None) -> None:
    """Unload a small model from the running engine."""
    _refuse_change(role, url, "unloaded")


@app.command()
def journal(
    folder: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Print every decision about a small model that was carried out, oldest first."""
    where = folder if folder is not None else state_dir(resolve().settings)
    entries = list(read_journal(where))
    lines = [entry for entry in entries if isinstance(entry, JournalLine)]
    if json:
        output.emit_json(lines)
    else:
        for line in lines:
            output.emit(_journal_line(line))
    if len(entries) > len(lines):
        output.warn(f"{len(entries) - len(lines)} lines of the journal in {where} are no decisions and were left out")
    if not entries:
        output.note(f"no decision has been carried out yet: no journal in {where}")


def _document(settings: Settings, file: Path | None) -> Residency:
    try:
        return read_residency(file if file is not None else residency_file(settings))
    except ResidencyFileError as why:
        raise CommandError(str(why), Exit.USAGE) from why


def _basis(settings: Settings, document: Residency, url: str | None) -> Basis:
    address = address_of(url)
    try:
        found = health(address)
    except (NoAnswer, Refused) as why:
        asked = f" ({why.message})" if url is not None or isinstance(why, Refused) else ""
        return _of_this_box(settings, document, asked)
    return _of_engine(settings, document, found, address.url)


def _of_engine(settings: Settings, document: Residency, found: Health, url: str) -> Basis:
    figures = figures_of(found, document, settings.role_reload_margin_gb)
    loaded = frozenset(role.name for role in found.roles if role.state == "loaded")
    still = ", which is still loading, so that they will change" if found.status is Status.LOADING else ""
    growth = (
        "up to its declared peak"
        if document.engine_peak_bytes is not None or found.memory.peak is not None
        else "the KV that one request in the longest window may still commit"
    )
    return Basis(figures, loaded, f"Figures of the engine at {url}{still}; growth to come is {growth}.")


def _of_this_box(settings: Settings, document: Residency, asked: str) -> Basis:
    reading = open_probe().read()
    try:
        floor = default_floors(reading.total, floor=settings.parallel_floor_gb).floor
    except ValueError as why:
        raise CommandError(str(why), Exit.USAGE) from why
    margin = document.margin_bytes if document.margin_bytes is not None else settings.role_reload_margin_gb
    growth = growth_to_come(declared_peak=document.engine_peak_bytes, holds=0, longest_window=0)
    figures = PlanFigures(reading.source, reading.available, floor, margin, growth)
    engine = (
        f"the {size(growth)} that engine_peak_gb declares for one are kept free"
        if growth
        else "what one would take is not in them (engine_peak_gb in the residency document declares it)"
    )
    return Basis(figures, frozenset(), f"Figures of this box, no engine runs{asked}; {engine}.")


def _refuse_change(role: str, url: str | None, done: str) -> None:
    found = health(address_of(url))
    known = [entry.name for entry in found.roles]
    if role not in known:
        raise CommandError(f"no role {role!r}; known: {', '.join(known) or 'none'}", Exit.USAGE)
    raise CommandError(f"{role} was not {done}: {NOT_BUILT} in the engine; {REAL_ADVICE}", Exit.REFUSED)


GLYPHS = {"load": "+", "keep": "=", "refuse": "-"}
STYLES = {"load": "green", "keep": "cyan", "refuse": "yellow"}


def _show(report: PlanReport, summary: str) -> None:
    from rich.table import Table
    from rich.text import Text

    memory = report.memory
    output.emit(summary)
    output.emit(
        f"{size(memory.available)} available ({memory.source}), {size(memory.engine_growth_to_come)} of engine growth "
        f"to come, {size(memory.floor)} floor, {size(memory.margin)} margin. Nothing is changed."
    )
    if not report.decisions:
        output.emit("The residency document names no roles.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("decision")
    table.add_column("role")
    table.add_column("kind")
    table.add_column("claim", justify="right")
    table.add_column("leaves", justify="right")
    for decision in report.decisions:
        table.add_row(
            Text(f"{GLYPHS[decision.decision]} {decision.decision}", style=STYLES[decision.decision]),
            Text(decision.role),
            decision.kind,
            f"{size(decision.claim_bytes)} {decision.claim_source}",
            size(decision.headroom_after),
        )
    output.emit("")
    output.draw(table)
    output.emit("")
    for decision in report.decisions:
        output.draw(Text(_sentences(decision)))


def _sentences(decision: PlanDecision) -> str:
    end = f" To fit: {decision.to_fit}." if decision.to_fit else ""
    return f"{decision.role}: {decision.reason}.{end}"


def _show_roles(roles: list[Role]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in ("role", "state", "claim", "measured", "for", "why"):
        table.add_column(name, justify="right" if name in ("claim", "measured", "for") else "left")
    for role in roles:
        measured = "-" if role.measured_bytes is None else size(role.measured_bytes)
        table.add_row(
            Text(output.printable(role.name)),
            role.state.value,
            size(role.claim_bytes),
            measured,
            span(role.since_s),
            Text(output.printable(role.reason)),
        )
    output.draw(table)


def _journal_line(line: JournalLine) -> str:
    when = datetime.fromtimestamp(line.time).astimezone().isoformat(sep=" ", timespec="seconds")
    numbers = ", ".join(f"{name} {size(value)}" for name, value in line.numbers.items())
    return output.printable(
        f"{when}  {line.action:<8} {line.role}: {line.cause}" + (f" ({numbers})" if numbers else "")
    )
