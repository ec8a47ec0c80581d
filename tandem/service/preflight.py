"""What is checked and fetched before an engine starts: settings, port, state directory, floors, claims, the model."""

from __future__ import annotations

from pathlib import Path

from engine.execution.devices import UnusableDevice, choose, look
from engine.memory.budget import default_floors
from engine.memory.probe import open_probe
from engine.memory.sizes import size
from engine.process.listening import PortInUse, bind
from engine.process.locks import holder
from engine.process.state_dir import LOCK_NAME, StateDirLocked, StateDirUnusable, prepare
from tandem import output
from tandem.exits import CommandError, Exit
from tandem.service.claims import check_unclaimed
from tandem.settings.engine_config import check_host, state_dir
from tandem.settings.origins import Resolved
from tandem.settings.table import BY_NAME, Settings


def refuse_early(resolved: Resolved, *, supervised: bool = False) -> None:
    """Refuse what could not be served anyway, before a model is fetched or read. `supervised`: for an engine whose
    supervisor holds the port and the state directory for it."""
    check_host(resolved)
    check_free(resolved.settings)
    if not supervised:
        check_floors(resolved)
        check_unclaimed(resolved.settings.port, state_dir(resolved.settings))


def find_model(wanted: str) -> tuple[Path, str]:
    """The file and the name of a model, fetched with a progress bar where it is known but not here yet."""
    from engine.models.catalog import BUILT_IN, FetchFailed, UnknownModel, pull, resolve

    try:
        path = resolve(wanted)
        if wanted in BUILT_IN and (refusal := BUILT_IN[wanted].refusal):
            raise CommandError(f"{wanted} cannot be served: {refusal}")
        if wanted in BUILT_IN and not path.is_file():
            output.note(f"fetching {wanted} once, into {path.parent}")
            with output.progress(wanted) as report:
                path = pull(wanted, report)
    except UnknownModel as why:
        raise CommandError(str(why), Exit.USAGE) from why
    except FetchFailed as why:
        raise CommandError(str(why)) from why
    return path, wanted if wanted in BUILT_IN else path.stem


def check_free(settings: Settings) -> None:
    """Refuse early, before a model is fetched or read, where the port or the state directory is taken. The service
    checks both again when it takes them."""
    folder = state_dir(settings)
    try:
        prepare(folder)
        pid = holder(folder / LOCK_NAME)
    except StateDirUnusable as why:
        raise CommandError(str(why), Exit.USAGE) from why
    except OSError as why:
        raise CommandError(str(StateDirUnusable(folder, why)), Exit.USAGE) from why
    if pid is not None:
        raise CommandError(str(StateDirLocked(folder, pid)), Exit.REFUSED)
    try:
        bind(settings.host, settings.port).close()
    except PortInUse as why:
        raise CommandError(str(why), Exit.REFUSED) from why
    except OSError as why:
        raise CommandError(f"{settings.host}:{settings.port} cannot be listened on: {why}", Exit.REFUSED) from why


def check_floors(resolved: Resolved) -> None:
    """Refuse floors above which no request could ever run (exit 2), or none could now (exit 5).

    Of a GPU only the size is read. The engine checks its free memory when it holds the GPU.
    """
    settings = resolved.settings
    floor, hard = settings.parallel_floor_gb, settings.kv_hard_floor_gb
    if floor is None and hard is None:
        return
    setting = BY_NAME["parallel_floor_gb" if hard is None else "kv_hard_floor_gb"]
    name = resolved.origins[setting.name].name or setting.variable
    memory = open_probe().read()
    gpu = _gpu_bytes(settings)
    try:
        kept = default_floors(memory.total if gpu is None else gpu, floor, hard).hard_floor
    except ValueError as why:
        raise CommandError(str(why), Exit.USAGE) from why
    if gpu is None and kept >= memory.available:
        raise CommandError(
            f"{name} keeps {size(kept)} free whatever runs, and {size(memory.available)} are available "
            f"({memory.source}): no request could run; lower it, or free memory",
            Exit.REFUSED,
        )


def _gpu_bytes(settings: Settings) -> int | None:
    """The memory of the GPU that would run the model; None where the CPU does."""
    try:
        gpu = choose(settings.device, look()).gpu
    except UnusableDevice:
        return None
    return None if gpu is None else gpu.total
