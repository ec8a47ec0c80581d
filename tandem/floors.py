"""Holds the floors that a person set against the memory there is, before a model is fetched or read."""

from __future__ import annotations

from engine.devices import UnusableDevice, choose, look
from engine.memory.budget import default_floors
from engine.memory.probe import open_probe
from engine.memory.sizes import size
from tandem.exits import CommandError, Exit
from tandem.origins import Resolved
from tandem.settings import BY_NAME, Settings


def check_floors(resolved: Resolved) -> None:
    """Refuse floors above which no request could ever run (exit 2), or none could now (exit 5).

    A card is asked for its size alone: the engine, which holds it then, looks at what is free there.
    """
    settings = resolved.settings
    floor, hard = settings.parallel_floor_gb, settings.kv_hard_floor_gb
    if floor is None and hard is None:
        return
    setting = BY_NAME["parallel_floor_gb" if hard is None else "kv_hard_floor_gb"]
    said = resolved.origins[setting.name].name or setting.variable
    memory = open_probe().read()
    card = _card_bytes(settings)
    try:
        kept = default_floors(memory.total if card is None else card, floor, hard).hard_floor
    except ValueError as why:
        raise CommandError(str(why), Exit.USAGE) from why
    if card is None and kept >= memory.available:
        raise CommandError(
            f"{said} keeps {size(kept)} free whatever runs, and {size(memory.available)} are available "
            f"({memory.source}): no request could run; lower it, or free memory",
            Exit.REFUSED,
        )


def _card_bytes(settings: Settings) -> int | None:
    """The memory of the card that would run the model; None where the CPU does."""
    try:
        card = choose(settings.device, look()).card
    except UnusableDevice:
        return None
    return None if card is None else card.total
