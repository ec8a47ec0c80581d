"""Holds the floors that a person set against the memory there is, before a model is fetched or read."""

from __future__ import annotations

from engine.execution.devices import UnusableDevice, choose, look
from engine.memory.budget import default_floors
from engine.memory.probe import open_probe
from engine.memory.sizes import size
from tandem.exits import CommandError, Exit
from tandem.origins import Resolved
from tandem.settings import BY_NAME, Settings


def check_floors(resolved: Resolved) -> None:
    """Refuse floors above which no request could ever run (exit 2), or none could now (exit 5).

    A GPU is asked for its size alone: the engine, which holds it then, looks at what is free there.
    """
    settings = resolved.settings
    floor, hard = settings.parallel_floor_gb, settings.kv_hard_floor_gb
    if floor is None and hard is None:
        return
    setting = BY_NAME["parallel_floor_gb" if hard is None else "kv_hard_floor_gb"]
    said = resolved.origins[setting.name].name or setting.variable
    memory = open_probe().read()
    gpu = _gpu_bytes(settings)
    try:
        kept = default_floors(memory.total if gpu is None else gpu, floor, hard).hard_floor
    except ValueError as why:
        raise CommandError(str(why), Exit.USAGE) from why
    if gpu is None and kept >= memory.available:
        raise CommandError(
            f"{said} keeps {size(kept)} free whatever runs, and {size(memory.available)} are available "
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
