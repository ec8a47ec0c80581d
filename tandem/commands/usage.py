"""`tandem usage`: what was served, out of the ledger's file, whether or not an engine runs."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.text.figures import span
from engine.process.ledger.reader import LedgerReader, TookTooLong
from engine.process.ledger.store import FILE_NAME, LedgerUnusable
from engine.process.ledger.usage import UsageBy, UsageReport, UsageTotals, usage
from tandem import output
from tandem.client.register import running
from tandem.commands.options import JsonOption, StateDirOption
from tandem.exits import CommandError, Exit
from tandem.settings.engine_config import state_dir as configured_state_dir
from tandem.settings.origins import resolve

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

LIMIT_S = 120.0
"""How long totals over the largest ledger may take."""

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_COLUMNS = ("requests", "prompt", "cached", "written", "in slots", "ttft", "errors", "refused")


@app.command("usage")
def show(
    by: Annotated[UsageBy | None, typer.Option("--by", help="One line for each day, client or model.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE|DATE", help="Requests that ended since: 90m, 24h, 7d, 4w or YYYY-MM-DD."),
    ] = None,
    state_dir: StateDirOption = None,
    json: JsonOption = False,
) -> None:
    """Print what was served: requests, tokens, time in slots, the median first token, errors.

    Exit 3 where there is no ledger, 1 where it cannot be read.
    """
    start = None if since is None else since_time(since, time.time())
    path = ledger_path(state_dir)
    if not os.access(path, os.F_OK):
        raise CommandError(f"no ledger at {path}: no engine has kept one there (TANDEM_LEDGER_DAYS)", Exit.NOT_RUNNING)
    try:
        report = usage(LedgerReader(path, limit_s=LIMIT_S), str(path), by=by, since=start)
    except (LedgerUnusable, TookTooLong) as why:
        raise CommandError(str(why)) from why
    if json:
        output.emit_json(report)
    else:
        output.draw(table(report))


def ledger_path(state_dir: Path | None) -> Path:
    """The ledger of `state_dir` where one is named, else of the only engine that runs, else of the settings' folder."""
    if state_dir is None:
        found = running()
        if len(found) > 1:
            listed = ", ".join(str(engine.state_dir) for engine in found)
            raise CommandError(f"several engines run; choose one with --state-dir: {listed}", Exit.USAGE)
        state_dir = found[0].state_dir if found else configured_state_dir(resolve().settings)
    return state_dir.absolute() / FILE_NAME


def since_time(text: str, now: float) -> float:
    """The Unix time that `text` means: an age before `now`, or the begin of a local day. Raises CommandError."""
    age = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if age:
        return now - int(age[1]) * _UNITS[age[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").timestamp()
    except (ValueError, OverflowError):
        raise CommandError(
            f"--since is {text!r}; allowed: a number with m, h, d or w, or a date as YYYY-MM-DD", Exit.USAGE
        ) from None


def table(report: UsageReport) -> Table:
    """One line a group, and the total last."""
    from rich.table import Table

    figures = [_cells(group.totals) for group in report.groups]
    total = _cells(report.total)
    # A long name is cut, a figure never.
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    grid.add_column(str(report.by) if report.by else "", overflow="ellipsis", min_width=10, max_width=24)
    for name, *cells in zip(_COLUMNS, *figures, total, strict=True):
        grid.add_column(name, justify="right", width=max(len(text) for text in (name, *cells)))
    for group, cells in zip(report.groups, figures, strict=True):
        grid.add_row(output.printable(group.key) or "-", *cells)
    grid.add_row("total", *total, style="bold" if report.groups else "")
    return grid


def _cells(totals: UsageTotals) -> list[str]:
    median = totals.ttft_median_s
    return [
        f"{totals.requests:,}",
        f"{totals.prompt_tokens:,}",
        f"{totals.cached_tokens:,}",
        f"{totals.completion_tokens:,}",
        span(totals.served_s),
        "-" if median is None else f"{median:.2f} s",
        f"{totals.errors:,}",
        f"{totals.refused:,}",
    ]
