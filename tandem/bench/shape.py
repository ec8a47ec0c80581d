"""`tandem bench shape`: a decode step of a model's sizes with random weights, without a model file or a server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from engine.execution.shapes import LEAST_CAPABILITY, ON_CPU, SHAPES, ShapeForm, ShapeRun
from tandem import output
from tandem.exits import CommandError, Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 128
DEFAULT_ROWS = (1, 2, 4, 8, 16)


class ShapeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured. `layers` cuts the model short, None takes all of it."""

    name: str
    form: ShapeForm
    rows: tuple[int, ...]
    context: int
    layers: int | None
    seed: int


class ShapeLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One row count: the step's time, total tokens a second and their ratio to one row's, weight bytes over time as a
    share of what a kernel that only reads reaches, and how many rows gave the bits of alone."""

    rows: int
    step_ms: float
    total_tok_s: float
    over_one: float | None
    read_share: float
    identical: int


class ShapeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `read_bytes` are the weights that a step reads."""

    shape: str
    form: str
    device: str
    backend: str
    layers: int
    context: int
    seed: int
    read_bytes: int
    read_rate_bytes_s: float
    levels: list[ShapeLevel]


def shape_request(
    words: list[str],
    *,
    form: str | None,
    rows: str | None,
    context: int | None,
    layers: int | None,
    seed: int | None,
) -> ShapeRequest:
    """The command's words and flags, checked. Raises CommandError naming what is wrong, the limit and the value."""
    known = ", ".join(SHAPES)
    if len(words) != 1 or words[0] not in SHAPES:
        raise CommandError(f"bench shape takes one name of {known}, not {' '.join(words) or 'none'!r}", Exit.USAGE)
    config = SHAPES[words[0]]
    try:
        chosen = ShapeForm(form or ShapeForm.BF16)
    except ValueError as error:
        raise CommandError(f"--form is {form!r}; allowed: {', '.join(ShapeForm)}", Exit.USAGE) from error
    counts = _rows(rows) if rows is not None else DEFAULT_ROWS
    _within("--context", context, 1, config.context)
    _within("--layers", layers, 1, config.layers)
    return ShapeRequest(name=words[0], form=chosen, rows=counts, context=context or 1024, layers=layers, seed=seed or 0)


def measure(wanted: ShapeRequest, device: str, threads: int | None) -> ShapeReport:
    """Measure on `device` ("auto", "cpu", "cuda[:i]"). Raises CommandError where the form does not run there."""
    from engine.execution.devices import UnusableDevice, choose, look

    try:
        choice = choose(device, look())
    except UnusableDevice as why:
        raise CommandError(str(why), Exit.USAGE) from why
    config = SHAPES[wanted.name]
    config = replace(config, layers=wanted.layers or config.layers)
    if choice.gpu is not None:
        least = LEAST_CAPABILITY.get(wanted.form, choice.gpu.capability)
        if choice.gpu.capability < least:
            have, need = (f"{major}.{minor}" for major, minor in (choice.gpu.capability, least))
            shown = f"{choice.gpu.device} ({choice.gpu.name})"
            raise CommandError(f"--form {wanted.form} needs compute capability {need}, {shown} has {have}", Exit.USAGE)
        import torch

        from engine.execution.cuda.shapes import run_on_gpu

        torch.cuda.set_device(choice.gpu.index)
        try:
            run = run_on_gpu(config, wanted.form, wanted.rows, context=wanted.context, seed=wanted.seed)
        except torch.OutOfMemoryError as error:
            raise CommandError(
                f"{wanted.name} with {config.layers} layers in {wanted.form} does not fit {choice.gpu.name}; "
                "take fewer --layers"
            ) from error
    else:
        held = ON_CPU.get(wanted.form)
        if held is None:
            forms = ", ".join(ON_CPU)
            raise CommandError(
                f"--form {wanted.form} runs on a CUDA GPU alone, and {choice.reason or 'the device is cpu'}; the CPU "
                f"runs {forms}",
                Exit.USAGE,
            )
        from engine.execution.cpu_shapes import run_on_cpu
        from kernels.cpu.threads import available

        run = run_on_cpu(
            config, held, wanted.rows, context=wanted.context, seed=wanted.seed, threads=threads or available()
        )
    return _report(wanted, run)


def show(report: ShapeReport) -> RenderableType:
    """The report as a table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (report.shape, "bold"),
        f" in {report.form} on {report.device} ({report.backend}), {report.layers} layers, {report.context} tokens of "
        f"context; a step reads {report.read_bytes / 1e9:.2f} GB of weights, reading alone reaches "
        f"{report.read_rate_bytes_s / 1e9:.0f} GB/s",
    )
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rows", "step ms", "tok/s", "to one", "of reading", "identical"):
        grid.add_column(name, justify="right", no_wrap=True)
    for level in report.levels:
        same = level.identical == level.rows
        grid.add_row(
            str(level.rows),
            f"{level.step_ms:.3f}",
            f"{level.total_tok_s:.1f}",
            "-" if level.over_one is None else f"{level.over_one:.2f}x",
            f"{level.read_share:.3f}",
            Text(f"{level.identical}/{level.rows}", style="green" if same else "bold red"),
        )
    return Group(head, Text(""), grid)


def run(wanted: ShapeRequest, device: str, threads: int | None, *, json: bool) -> Exit:
    """Measure and print; FAILURE where a row's bits differ from alone."""
    report = measure(wanted, device, threads)
    if json:
        output.emit_json(report)
    else:
        output.draw(show(report))
    return Exit.OK if all(level.identical == level.rows for level in report.levels) else Exit.FAILURE


def _report(wanted: ShapeRequest, run: ShapeRun) -> ShapeReport:
    one = next((step.seconds for step in run.steps if step.rows == 1), None)
    levels = [
        ShapeLevel(
            rows=step.rows,
            step_ms=step.seconds * 1e3,
            total_tok_s=step.rows / step.seconds,
            over_one=None if one is None else step.rows * one / step.seconds,
            read_share=run.read_bytes / step.seconds / run.rate,
            identical=step.same,
        )
        for step in run.steps
    ]
    return ShapeReport(
        shape=wanted.name,
        form=wanted.form,
        device=run.device,
        backend=run.backend,
        layers=run.layers,
        context=wanted.context,
        seed=wanted.seed,
        read_bytes=run.read_bytes,
        read_rate_bytes_s=run.rate,
        levels=levels,
    )


def _rows(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_ROWS for word in words):
        raise CommandError(f"--rows is {text!r}; allowed: numbers from 1 to {MOST_ROWS}, with commas", Exit.USAGE)
    return tuple(dict.fromkeys(int(word) for word in words))


def _within(flag: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise CommandError(f"{flag} is {value}; allowed: {low} to {high}", Exit.USAGE)
