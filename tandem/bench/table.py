"""Draws a bench report."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.protocol.reports import BenchLevel, BenchReport

TIMES = ("tok/s", "to c1", "each", "slowest", "ttft s", "last", "gap s")
"""The timed columns: the level's total, its ratio, each request's median and least, first text, longest silence."""


def table(report: BenchReport, *, timed: bool) -> RenderableType:
    """The report as a table, with every reason and difference under it in words."""
    engine = report.engine
    head = Text.assemble(
        (engine.model, "bold"),
        f" on {engine.device}, {engine.parallel} slots; {report.prompts} prompts of up to "
        f"{report.tokens} tokens, greedy",
    )
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("level", *(TIMES if timed else ()), "identical", "at once"):
        grid.add_column(name, justify="left" if name == "level" else "right", no_wrap=True)
    for level in report.levels:
        grid.add_row(*_row(level, timed=timed))
    notes = [Text(line, style=style) for level in report.levels for line, style in _notes(level)]
    return Group(head, Text(""), grid, *([Text(""), *notes] if notes else []))


def _row(level: BenchLevel, *, timed: bool) -> list[RenderableType]:
    name = Text(f"c{level.c}", style="bold" if level.valid else "red")
    if not level.requests:
        return [
            name,
            *(Text("-", style="dim") for _ in (TIMES if timed else ())),
            Text("-"),
            Text("invalid", style="red"),
        ]
    ratio = f"{level.ratio_to_c1:.2f}x" if level.ratio_to_c1 is not None else "-"
    figures = [
        Text(f"{level.total_tok_s:.1f}", style="bold"),
        Text(ratio),
        Text(f"{level.per_request_tok_s.median:.1f}"),
        Text(f"{level.per_request_tok_s.min or 0:.1f}"),
        Text(f"{level.ttft_s.median:.2f}"),
        Text(f"{level.ttft_s.last or 0:.2f}"),
        Text(f"{level.worst_gap_s:.2f}"),
    ]
    same = Text(f"{level.identical}/{level.of}", style="green" if level.identical == level.of else "bold red")
    proof = Text(str(level.proof.peak_decoding)) if level.valid else Text("invalid", style="red")
    return [name, *(figures if timed else []), same, proof]


def _notes(level: BenchLevel) -> list[tuple[str, str]]:
    rounds = ", ".join(f"{count} of {size}" for size, count in level.proof.rounds.items())
    notes = [(f"c{level.c} rounds by slots: {rounds}", "dim")] if rounds else []
    if level.why_invalid:
        notes.append((f"c{level.c} is invalid: {level.why_invalid}", "red"))
    for one in level.differences:
        gap = f", top-2 gap {one.gap_nats:.4f} nats" if one.gap_nats is not None else ""
        notes.append(
            (
                f"c{level.c}: prompt {one.prompt} differs at token {one.position}: {one.alone!r} alone, "
                f"{one.here!r} here{gap}",
                "red",
            )
        )
    return notes
