"""Finds an engine that could not write its record (for example on a full disk), and checks that it is the right one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.process.owner_socket import SOCKET_NAME
from engine.process.state_dir import RECORD_NAME
from engine.protocol import decode_health
from tandem.client.wire import Address, NoAnswer, get

if TYPE_CHECKING:
    from tandem.settings.table import Settings


def configured_address(settings: Settings, state_dir: Path) -> Address:
    """Where an engine with these settings answers: at its owner's socket, else at its port, unless that is 0."""
    from engine.process.listening import Listening  # brings psutil, which most commands do without

    address = Address.of(Listening(settings.host, settings.port, []).url)
    return msgspec.structs.replace(address, port=settings.port, socket=str(state_dir / SOCKET_NAME))


def answers_unrecorded(address: Address, state_dir: Path, within_s: float) -> bool:
    """Whether the engine of that state directory answers at an address and says that it could not write its record."""
    with suppress(NoAnswer, msgspec.MsgspecError):
        body = get(address, "/health", timeout_s=within_s)[1]
        defect = decode_health(body).state_dir.defect if body else None
        return defect is not None and str(state_dir / RECORD_NAME) in defect
    return False
