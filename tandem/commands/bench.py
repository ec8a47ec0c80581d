"""`tandem bench`: levels c1, c2, c4 ..., `exact` for identity alone, or `shape` for a model's sizes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

import typer

from engine.protocol import encode
from engine.protocol.reports import BenchReport
from tandem import output
from tandem.bench.levels import Plan, run_plan
from tandem.bench.load import read_prompts
from tandem.commands.options import JsonOption, OwnOption, UrlOption
from tandem.exits import CommandError, Exit
from tandem.service.own_engine import engine_for
from tandem.settings.completers import Candidates
from tandem.settings.flags import with_engine_flags
from tandem.settings.origins import Flags, resolve

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DEFAULT_LEVELS = (1, 2, 4)
DEFAULT_PROMPTS = 16
MOST = 256


def _words(incomplete: str) -> Candidates:
    return [("c1", ""), ("c2", ""), ("c4", ""), ("c8", ""), ("exact", "texts alone"), ("shape", "a model's sizes")]


@app.command()
@with_engine_flags(exclude=("parallel", "host", "port", "state_dir"))
def bench(
    flags: Flags,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[exact] [cN]... | shape NAME",
            help="Levels: cN sends N requests at once.",
            autocompletion=_words,
        ),
    ] = None,
    *,
    url: UrlOption = None,
    own: OwnOption = False,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer at most.")] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Prompts of your own, one a line."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="How many prompts. [16, or all of a file]")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--form", metavar="FORM", help="shape: bf16, q4, q8, fp8 or nvfp4. [bf16]")
    ] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="N,...", help="shape: requests of a step. [1,2,4,8,16]")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", metavar="N", help="shape: tokens that each request has. [1024]")
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", metavar="N", help="shape: layers of the model. [all]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="shape: of the weights. [0]")] = None,
    json: JsonOption = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the report there, too.")] = None,
) -> None:
    """Measure an engine: totals a level, each text against its alone text, and proof that requests ran together.

    Without --url it measures the engine that runs, or one of its own where none does. Exit 5 where a level is not
    proven, 1 where a text differs from its alone text. `exact` compares texts and leaves times out. `shape NAME`
    (llama-1b, qwen3-8b) times decode steps of a model's sizes with random weights: no file, no server.
    """
    if words and words[0] == "shape":
        from tandem.bench import shape

        settings = resolve(flags).settings
        wanted = shape.shape_request(words[1:], form=form, rows=rows, context=context, layers=layers, seed=seed)
        raise typer.Exit(shape.run(wanted, settings.device, settings.threads, json=json))
    if (form, rows, context, layers, seed) != (None,) * 5:
        raise CommandError("--form, --rows, --context, --layers and --seed belong to bench shape NAME", Exit.USAGE)
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
    """Refuse a report file that cannot be written, before minutes are spent on measuring."""
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
        if word == "prices":
            raise CommandError("bench prices needs speculation, which does not exist yet", Exit.USAGE)
        if not re.fullmatch(r"c[1-9][0-9]{0,3}", word) or int(word[1:]) > MOST:
            raise CommandError(f"{word!r} is no level; allowed: c1 to c{MOST}, or exact before them", Exit.USAGE)
        if int(word[1:]) not in levels:
            levels.append(int(word[1:]))
    return timed, tuple(levels) or DEFAULT_LEVELS
