"""`tandem doctor`: what this box has, what it can hold, and what would go wrong."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.memory.budget import Floors, default_floors
from engine.memory.probe import MemoryReading, open_probe
from engine.memory.sizes import GIB, size
from tandem import output
from tandem.configure import check_free, check_host, state_dir
from tandem.exits import CommandError, Exit
from tandem.origins import Flags, Resolved, resolve
from tandem.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_SLOTS = 8
"""Slot counts that are tested; more may work."""


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


class Line(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str


class SlotAdvice(msgspec.Struct, frozen=True):
    """How many slots this box should run, and what they cost in bytes.

    `row_bytes` is a token's KV, `main_bytes` and `side_bytes` a full window of slot 0 and of another slot; a slot takes
    them page by page as its conversation grows.
    """

    slots: int
    row_bytes: int
    main_window: int
    side_window: int
    main_bytes: int
    side_bytes: int
    weights_bytes: int
    reason: str


class DoctorReport(msgspec.Struct, frozen=True):
    """What `--json` prints. `advice` is null where no model can be read."""

    healthy: bool
    lines: list[Line]
    advice: SlotAdvice | None


@app.command()
def doctor(
    model: Annotated[str | None, typer.Option("--model", metavar="NAME|PATH", help="The model to advise on.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this box and recommend a slot count. Exit 1 where something would keep an engine from starting."""
    report = examine(resolve(Flags({"model": model} if model else {})))
    if json:
        output.emit_json(report)
    else:
        for line in report.lines:
            output.emit(f"{line.verdict.value:<5} {line.what:<9} {line.detail}")
        if report.advice is not None:
            output.emit(f"\n{_say(report.advice)}")
    raise typer.Exit(Exit.OK if report.healthy else Exit.FAILURE)


def examine(resolved: Resolved) -> DoctorReport:
    """Look at everything that an engine with these settings would need."""
    settings = resolved.settings
    reading = open_probe().read()
    floors = _floors(settings, reading)
    lines = [
        _python(),
        _torch(),
        _compiler(settings),
        _gpu(settings),
        _cores(settings),
        _memory(reading, floors),
        _refused("address", f"{settings.host}:{settings.port} is free", lambda: _address(resolved)),
        _disk("state", state_dir(settings), GIB // 4),
        *_settings_notes(resolved),
    ]
    model, advice = _model(settings, reading, floors)
    lines += model
    return DoctorReport(all(line.verdict != Verdict.FAIL for line in lines), lines, advice)


def recommend(*, row_bytes: int, main_window: int, side_window: int, weights: int, room: int, cores: int) -> SlotAdvice:
    """The slot count whose windows, filled to the last row, fit in `room` bytes beside the weights.

    More slots than twice the cores share a pass whose time then grows with each of them, so they add little.
    """
    main, side = main_window * row_bytes, side_window * row_bytes
    left = room - weights - main
    by_memory = 1 + max(0, left) // side
    by_cores = max(2, 2 * cores)
    slots = max(1, min(by_memory, by_cores, MOST_SLOTS))
    if slots == by_memory:
        reason = f"{size(max(0, left))} are left for side slots above the floor, a full one takes {size(side)}"
    elif slots == by_cores:
        reason = f"with {cores} cores more would add little; memory would hold {by_memory}"
    else:
        reason = f"more are untested; memory would hold {by_memory}"
    return SlotAdvice(slots, row_bytes, main_window, side_window, main, side, weights, reason)


def _say(advice: SlotAdvice) -> str:
    return (
        f"Recommended: --parallel {advice.slots} ({advice.reason}).\n"
        f"Weights take {size(advice.weights_bytes)}. A token takes {size(advice.row_bytes)}: slot 0 up to "
        f"{size(advice.main_bytes)} ({advice.main_window} tokens), each other slot up to {size(advice.side_bytes)} "
        f"({advice.side_window} tokens), taken as conversations grow."
    )


def _python() -> Line:
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Line("python", Verdict.OK if fits else Verdict.FAIL, f"{platform.python_version()}, 3.11 or 3.12 needed")


def _torch() -> Line:
    try:
        return Line("torch", Verdict.OK, version("torch"))
    except PackageNotFoundError:
        return Line("torch", Verdict.FAIL, "not installed; `make setup` installs it")


def _compiler(settings: Settings) -> Line:
    from kernels.cpu.build import BuildError, compiler

    if settings.cpu_backend == "torch":
        return Line("compiler", Verdict.NOTE, "not used: TANDEM_CPU_BACKEND is torch")
    try:
        return Line("compiler", Verdict.OK, f"{compiler()}; the CPU kernels are compiled at the first start")
    except BuildError as why:
        return Line("compiler", Verdict.NOTE, f"{why}; the CPU runs on torch's kernels, which are slower")


def _gpu(settings: Settings) -> Line:
    from engine.devices import UnusableDevice, choose, look

    if settings.device == "cpu":
        return Line("gpu", Verdict.OK, "not used: TANDEM_DEVICE is cpu")
    try:
        choice = choose(settings.device, look())
    except UnusableDevice as why:
        return Line("gpu", Verdict.FAIL, str(why))
    if choice.card is None:
        return Line("gpu", Verdict.OK, f"not used, the CPU runs the model: {choice.reason}")
    card = choice.card
    major, minor = card.capability
    detail = f"{card.device} runs the model where it fits: {card.name}, {size(card.total)}, capability {major}.{minor}"
    return Line("gpu", Verdict.OK, detail)


def _cores(settings: Settings) -> Line:
    cores = _usable_cores()
    if settings.threads is not None and settings.threads > cores:
        return Line(
            "cores", Verdict.NOTE, f"{cores}, and TANDEM_THREADS asks for {settings.threads}: slower than {cores}"
        )
    return Line("cores", Verdict.OK, str(cores))


def _usable_cores() -> int:
    from kernels.cpu.threads import available

    return available()


def _floors(settings: Settings, reading: MemoryReading) -> Floors:
    return default_floors(reading.total, settings.parallel_floor_gb, settings.kv_hard_floor_gb)


def _memory(reading: MemoryReading, floors: Floors) -> Line:
    detail = (
        f"{size(reading.available)} of {size(reading.total)} available ({reading.source}); "
        f"floor {size(floors.floor)}, hard floor {size(floors.hard_floor)}"
    )
    return Line("memory", Verdict.OK if reading.available > floors.floor else Verdict.FAIL, detail)


def _address(resolved: Resolved) -> None:
    check_host(resolved)
    check_free(resolved.settings)


def _refused(what: str, fine: str, check: Callable[[], None]) -> Line:
    try:
        check()
    except CommandError as why:
        return Line(what, Verdict.FAIL, why.message)
    return Line(what, Verdict.OK, fine)


def _disk(what: str, folder: Path, need: int) -> Line:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    return Line(what, Verdict.OK if free >= need else Verdict.FAIL, f"{folder}, {size(free)} free")


def _settings_notes(resolved: Resolved) -> list[Line]:
    return [Line("settings", Verdict.NOTE, text) for text in resolved.notes]


def _model(settings: Settings, reading: MemoryReading, floors: Floors) -> tuple[list[Line], SlotAdvice | None]:
    """What is to be said of the model, and the advice where its file can be read."""
    from engine.catalog import BUILT_IN, UnknownModel, models_dir
    from engine.catalog import resolve as find

    lines = []
    built_in = BUILT_IN.get(settings.model)
    if built_in is not None:
        lines.append(_disk("models", models_dir(), 2 * built_in.bytes))
    try:
        path = find(settings.model)
    except UnknownModel as why:
        return [*lines, Line("model", Verdict.FAIL, str(why))], None
    if not path.is_file():
        name = settings.model
        return [*lines, Line("model", Verdict.NOTE, f"{name} is not fetched yet; `tandem models pull {name}`")], None
    from engine.weights.gguf import DamagedModel, UnsupportedModel

    try:
        advice = _advise(path, settings, reading, floors)
    except (DamagedModel, UnsupportedModel) as why:
        return [*lines, Line("model", Verdict.FAIL, str(why))], None
    return [*lines, Line("model", Verdict.OK, f"{path}, {size(path.stat().st_size)}")], advice


def _advise(path: Path, settings: Settings, reading: MemoryReading, floors: Floors) -> SlotAdvice:
    """Raises DamagedModel or UnsupportedModel."""
    from engine.boot import SIDE_WINDOW
    from engine.models.gguf_config import llama_config
    from engine.models.llama import kv_layout
    from engine.weights.gguf import open_gguf

    file = open_gguf(path)
    config = llama_config(file.metadata, file.tensors)
    main = min(settings.max_len or config.context, config.context)
    return recommend(
        row_bytes=kv_layout(config).row_bytes,
        main_window=main,
        side_window=min(settings.side_max_len or SIDE_WINDOW, main),
        weights=path.stat().st_size,
        room=reading.available - floors.floor,
        cores=_usable_cores(),
    )
