"""`tandem bench`: levels c1, c2, c4 ..., or `exact` for identity alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

import typer

from engine.protocol import BenchReport, encode
from tandem import output
from tandem.bench.levels import Plan, run_plan
from tandem.bench.load import read_prompts
from tandem.exits import CommandError, Exit
from tandem.flags import with_engine_flags
from tandem.origins import Flags
from tandem.own_engine import engine_for

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DEFAULT_LEVELS = (1, 2, 4)
DEFAULT_PROMPTS = 16
MOST = 256


@app.command()
@with_engine_flags(but=("parallel", "host", "port", "state_dir"))
def bench(
    flags: Flags,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[exact] [cN]...", help="Levels: cN sends N requests at once.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The engine to measure.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Measure an engine of its own, also where one runs.")] = False,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer at most.")] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Prompts of your own, one a line."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="How many prompts. [16, or all of a file]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the report there, too.")] = None,
) -> None:
    """Measure an engine: totals a level, each text against its alone text, and proof that requests ran together.

    Without --url it measures the engine that runs, or one of its own where none does. Exit 5 where a level is not
    proven, 1 where a text differs from its alone text. `exact` compares texts and leaves times out.
    """
    timed, levels = _read_words(words or [])
    if count is None and prompts is None:
        count = max(DEFAULT_PROMPTS, *levels)
    plan = Plan(levels, tuple(read_prompts(prompts, count)), tokens)
    if out is not None:
        _require_writable(out)
    with engine_for(url, flags, slots=max(levels), own=own) as address:
        report = asyncio.run(run_plan(address, plan))
    if out is not None:
        out.write_bytes(encode(report))
    if json:
        output.emit_json(report)
    else:
        from tandem.bench.table import table

        output.draw(table(report, timed=timed))
    raise typer.Exit(_code(report))


def _require_writable(path: Path) -> None:
    """Refuse before minutes are spent on a report that cannot be written."""
    try:
        path.open("ab").close()
    except OSError as why:
        raise CommandError(f"--out {path}: cannot be written: {why.strerror}", Exit.USAGE) from why


def _code(report: BenchReport) -> Exit:
    if not report.valid:
        return Exit.REFUSED
    return Exit.FAILURE if any(level.differences for level in report.levels) else Exit.OK


def _read_words(words: list[str]) -> tuple[bool, tuple[int, ...]]:
    """Whether times are wanted, and the levels."""
    timed = words[:1] != ["exact"]
    levels: list[int] = []
    for word in words if timed else words[1:]:
        if word in ("shape", "prices"):
            raise CommandError(f"bench {word} measures the GPU backend's kernels, which do not exist yet", Exit.USAGE)
        if not re.fullmatch(r"c[1-9][0-9]{0,3}", word) or int(word[1:]) > MOST:
            raise CommandError(f"{word!r} is no level; allowed: c1 to c{MOST}, or exact before them", Exit.USAGE)
        if int(word[1:]) not in levels:
            levels.append(int(word[1:]))
    return timed, tuple(levels) or DEFAULT_LEVELS
