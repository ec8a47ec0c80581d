"""What `/health` says of the process around the engine: its log and its state directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.protocol import Health, LogState, StateDirState


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Of a service. `log` is read anew each time, from any thread."""

    log: Callable[[], LogState] = LogState
    state_dir: StateDirState = field(default_factory=StateDirState)

    def added_to(self, health: Health) -> Health:
        return msgspec.structs.replace(health, log=self.log(), state_dir=self.state_dir)
