"""The checks of `tandem doctor`: one function for each thing that an engine on this box needs."""

from __future__ import annotations

import locale
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from engine.execution.cuda.nvml import read_gpu
from engine.execution.devices import Gpu
from engine.memory.budget import Floors, default_floors
from engine.memory.probe import GPU, MemoryReading, open_probe
from engine.memory.sizes import GIB, size
from engine.models.catalog import BUILT_IN, models_dir
from engine.process.keyring import TOKENS, SecretsUnusable, read_secrets
from engine.process.listening import PortInUse, bind, is_loopback
from engine.process.locks import holder, process_words
from engine.process.state_dir import LOCK_NAME, StateDirUnusable, prepare, read_record
from engine.protocol import Health
from tandem.client.register import running
from tandem.client.wire import Address, health
from tandem.doctor.advice import MOST_SLOTS, SlotAdvice, recommend
from tandem.exits import CommandError, Exit
from tandem.service.unit import lingers
from tandem.settings.engine_config import crowded, secrets_file, state_dir, usable_cores
from tandem.settings.origins import Resolved
from tandem.settings.table import Settings

LEAST_COLUMNS, LEAST_ROWS = 60, 18
"""The smallest terminal that the console draws in full."""


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


class Line(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str


class DoctorReport(msgspec.Struct, frozen=True):
    """What `--json` prints. `advice` is null where no model can be read."""

    healthy: bool
    lines: list[Line]
    advice: SlotAdvice | None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A memory that a model could run in: its figures, the floors that the settings give it, and how many cores share
    a decode round there."""

    name: str
    reading: MemoryReading
    settings: Settings
    cores: int

    @property
    def floors(self) -> Floors:
        """Raises ValueError where the settings' floors are too high for this memory."""
        return default_floors(self.reading.total, self.settings.parallel_floor_gb, self.settings.kv_hard_floor_gb)

    @property
    def room(self) -> int:
        """Bytes above the floor: below 0 where other programs hold them, 0 where the floors are refused."""
        try:
            return self.reading.available - self.floors.floor
        except ValueError:
            return 0


def examine(resolved: Resolved) -> DoctorReport:
    """Look at everything that an engine with these settings would need. Raises CommandError (exit 2) for a model that
    is neither known nor a file."""
    settings = resolved.settings
    driver, gpu = _driver(settings)
    host = DeviceMemory("host", open_probe().read(), settings, usable_cores().usable)
    on_gpu = None if gpu is None else _gpu_place(gpu, settings)
    model, advice = _model(settings, on_gpu or host)
    lines = [
        driver,
        _torch(),
        _compiler(settings),
        _python(),
        _cores(settings),
        _memory("memory", host),
        *([] if on_gpu is None else [_memory("GPU", on_gpu)]),
        _port(settings),
        _lock(settings),
        _disk("disk", state_dir(settings), GIB // 4),
        *model,
        _keys(resolved),
        _linger(),
        _terminal(os.environ),
        *(Line("settings", Verdict.NOTE, text) for text in resolved.notes),
    ]
    return DoctorReport(all(line.verdict != Verdict.FAIL for line in lines), lines, advice)


def _driver(settings: Settings) -> tuple[Line, Gpu | None]:
    """What the driver shows, and the GPU that would run the model."""
    from engine.execution.devices import UnusableDevice, choose, look

    if settings.device == "cpu":
        return Line("driver", Verdict.OK, "not used: TANDEM_DEVICE is cpu"), None
    try:
        choice = choose(settings.device, look())
    except UnusableDevice as why:
        return Line("driver", Verdict.FAIL, str(why)), None
    if choice.gpu is None:
        return Line("driver", Verdict.OK, f"no GPU, the CPU runs the model: {choice.reason}"), None
    gpu = choice.gpu
    state = read_gpu(gpu.index)
    major, minor = gpu.capability
    version = f"driver {state.driver}; " if state else ""
    what = f"{gpu.name}, {size(gpu.total)}, capability {major}.{minor}"
    return Line("driver", Verdict.OK, f"{version}{gpu.device} runs the model where it fits: {what}"), gpu


def _gpu_place(gpu: Gpu, settings: Settings) -> DeviceMemory:
    """A GPU's memory. Where its free memory is not known, all of it counts. Cores do not limit a decode round there."""
    state = read_gpu(gpu.index)
    total, free = (state.total, state.free) if state else (gpu.total, gpu.total)
    reading = MemoryReading(source=GPU, total=total, available=free, occupied=total - free, own=0)
    return DeviceMemory(gpu.device, reading, settings, cores=MOST_SLOTS)


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


def _python() -> Line:
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Line("python", Verdict.OK if fits else Verdict.FAIL, f"{platform.python_version()}, 3.11 or 3.12 needed")


def _cores(settings: Settings) -> Line:
    """What computes, and why with fewer threads than there are cores."""
    cores = usable_cores()
    if why := crowded(settings):
        return Line("cores", Verdict.NOTE, why)
    if cores.reason is None:
        return Line("cores", Verdict.OK, str(cores.usable))
    threads = settings.threads or cores.usable
    return Line("cores", Verdict.NOTE, f"{threads} thread{'s' * (threads > 1)}: {cores.reason}")


def _memory(what: str, place: DeviceMemory) -> Line:
    reading = place.reading
    try:
        floors = place.floors
    except ValueError as why:
        return Line(what, Verdict.FAIL, str(why))
    detail = (
        f"{size(reading.available)} of {size(reading.total)} available ({reading.source}); "
        f"floor {size(floors.floor)}, hard floor {size(floors.hard_floor)}"
    )
    return Line(what, Verdict.OK if place.room > 0 else Verdict.FAIL, detail)


def _port(settings: Settings) -> Line:
    record = read_record(state_dir(settings))
    if record is not None and Address.of(record.url).port == settings.port:
        return Line("port", Verdict.NOTE, f"{record.url} is served by your engine, process {record.pid}")
    try:
        bind(settings.host, settings.port).close()
    except PortInUse as why:
        return Line("port", Verdict.FAIL, str(why))
    except OSError as why:
        return Line("port", Verdict.FAIL, f"{settings.host}:{settings.port} cannot be listened on: {why}")
    return Line("port", Verdict.OK, f"{settings.host}:{settings.port} is free")


def _lock(settings: Settings) -> Line:
    folder = state_dir(settings)
    try:
        prepare(folder)
        pid = holder(folder / LOCK_NAME)
    except (StateDirUnusable, OSError) as why:
        return Line("lock", Verdict.FAIL, str(why))
    if pid is None:
        return Line("lock", Verdict.OK, f"{folder} is free")
    return Line("lock", Verdict.NOTE, f"{folder} is held by {process_words(pid)}; `tandem status` says what it does")


def _disk(what: str, folder: Path, need: int) -> Line:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    short = "" if free >= need else f", {size(need)} needed"
    return Line(what, Verdict.FAIL if short else Verdict.OK, f"{folder}, {size(free)} free{short}")


def _keys(resolved: Resolved) -> Line:
    """Who may ask, and whether the host may be listened on with that."""
    path, host = secrets_file(resolved.settings), resolved.settings.host
    try:
        keys = sum(secret.label not in TOKENS for secret in read_secrets(path))
    except SecretsUnusable as why:
        return Line("secrets", Verdict.FAIL, str(why))
    if keys:
        return Line("secrets", Verdict.OK, f"{keys} API key{'s' * (keys > 1)} in {path}; every client needs one")
    if is_loopback(host):
        return Line("secrets", Verdict.OK, "no API keys: every client on this machine may ask, and no other machine")
    return Line(
        "secrets",
        Verdict.FAIL,
        f"{host} lets other machines in (set by {resolved.origins['host']}) and there is no API key; "
        "`tandem secrets add LABEL` makes one",
    )


def _linger() -> Line:
    match lingers():
        case True:
            return Line("linger", Verdict.OK, "your systemd services outlive the login")
        case False:
            fix = "`loginctl enable-linger` keeps them"
            return Line("linger", Verdict.NOTE, f"your systemd services end with your last session; {fix}")
        case None:
            return Line("linger", Verdict.OK, "not known: no systemd answers here; `tandem start` outlives the login")


def _terminal(environ: Mapping[str, str]) -> Line:
    """How the console will look here: colours, size, and whether more than ASCII can be shown."""
    if not sys.stdout.isatty():
        return Line("terminal", Verdict.OK, "standard output is none; the console needs one, `console --once` does not")
    columns, rows = shutil.get_terminal_size()
    encoding = locale.getpreferredencoding(False)
    troubles = []
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        troubles.append(f"the console needs {LEAST_COLUMNS}x{LEAST_ROWS}")
    if encoding.upper().replace("-", "") != "UTF8":
        troubles.append("only ASCII is sure to show: use the console's ascii theme, or a UTF-8 locale")
    term = environ.get("TERM") or "no TERM"
    detail = f"{term}, {_colours(environ)}, {columns}x{rows}, {encoding}"
    return Line("terminal", Verdict.NOTE if troubles else Verdict.OK, "; ".join([detail, *troubles]))


def _colours(environ: Mapping[str, str]) -> str:
    """What the environment promises, by the variables that terminal programs go by."""
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if term in ("", "dumb"):
        return "no colours"
    if environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "16 million colours"
    return "256 colours" if "256color" in term else "16 colours"


def _model(settings: Settings, place: DeviceMemory) -> tuple[list[Line], SlotAdvice | None]:
    """The lines about the model, and the advice where its file can be read."""
    from engine.models.catalog import UnknownModel
    from engine.models.catalog import resolve as find
    from engine.models.weights.gguf import DamagedModel, UnsupportedModel

    lines = []
    built_in = BUILT_IN.get(settings.model)
    if built_in is not None:
        lines.append(_disk("models", models_dir(), 2 * built_in.bytes))
    try:
        path = find(settings.model)
    except UnknownModel as why:
        raise CommandError(str(why), Exit.USAGE) from why
    if not path.is_file():
        name = settings.model
        return [*lines, Line("model", Verdict.NOTE, f"{name} is not fetched yet; `tandem models pull {name}`")], None
    try:
        advice = _advise(path, settings, place)
    except (DamagedModel, UnsupportedModel) as why:
        return [*lines, Line("model", Verdict.FAIL, str(why))], None
    return [*lines, Line("model", Verdict.OK, f"{path}, {size(path.stat().st_size)}")], advice


def _advise(path: Path, settings: Settings, place: DeviceMemory) -> SlotAdvice:
    """Raises DamagedModel or UnsupportedModel."""
    from engine.core.boot import SIDE_WINDOW
    from engine.models.gguf_config import checked_config
    from engine.models.llama import kv_layout
    from engine.models.weights.gguf import open_gguf

    file = open_gguf(path)
    config = checked_config(file)
    main = min(settings.max_len or config.context, config.context)
    name = settings.model if settings.model in BUILT_IN else path.stem
    served = next((one for one in running_engines() if one.model is not None and one.model.name == name), None)
    # Memory that a running engine of this model holds counts as available: it is not needed twice.
    held = 0 if served is None else served.memory.split.weights + served.memory.split.kv_committed
    return recommend(
        row_bytes=kv_layout(config).row_bytes,
        main_window=main,
        side_window=min(settings.side_max_len or SIDE_WINDOW, main),
        weights=path.stat().st_size,
        room=place.room + held,
        cores=place.cores,
        rounds={} if served is None else {stat.rows: stat for stat in served.round_stats},
    )


def running_engines() -> list[Health]:
    """The health of every engine of this user that answers."""
    found = []
    for engine in running():
        if engine.record is not None:
            try:
                found.append(health(Address.of_engine(engine.record), timeout_s=2.0))
            except CommandError:
                continue
    return found
