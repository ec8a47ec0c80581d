"""What the engine counts since its start. Only the engine thread writes here."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Ending


@dataclass(slots=True)
class Counters:
    """Requests by how they ended, peaks, and when a token or chunk last came."""

    endings: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
    waiting_memory: int = 0
    slot0_gave_up: int = 0
    peak_running: int = 0
    peak_decoding: int = 0
    last_progress: float | None = None

    @property
    def ended(self) -> int:
        """Requests that ended, however they did."""
        return sum(self.endings.values())

    def saw(self, *, running: int, decoding: int) -> None:
        self.peak_running = max(self.peak_running, running)
        self.peak_decoding = max(self.peak_decoding, decoding)
