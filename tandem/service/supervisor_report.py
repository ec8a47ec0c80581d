"""What a supervisor says of itself and its engine: `supervisor.json` in the state directory, also after its end."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path

import msgspec

from console.text.figures import span
from engine.process.locks import is_held
from engine.process.private_files import read_private
from engine.process.state_files import try_write
from tandem.settings.paths import SUPERVISOR_LOCK

REPORT_NAME = "supervisor.json"


class State(StrEnum):
    """What the supervisor does."""

    STARTING = "starting"
    """The engine was started and has not been ready yet."""
    WATCHING = "watching"
    PAUSING = "pausing"
    """The engine is down; it starts again after the pause."""
    ENDING = "ending"
    ENDED = "ended"
    GAVE_UP = "gave_up"
    DIED = "died"
    """It ended without a word. Never written, only seen."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `supervisor.json` says. `started`, `since` (of `state`) and `last_restart` are Unix times in seconds,
    `restarts` counts this supervisor's, `last_cause` says what the last was for, `reason` why it gave up."""

    pid: int
    engine_pid: int | None
    state: State
    started: float
    since: float
    restarts: int = 0
    last_restart: float | None = None
    last_cause: str | None = None
    reason: str | None = None

    @property
    def alive(self) -> bool:
        return self.state in (State.STARTING, State.WATCHING, State.PAUSING, State.ENDING)


def write_report(state_dir: Path, report: Report) -> None:
    """Write `supervisor.json`, on a full disk over what it says already. A disk that takes nothing costs the report,
    not the service."""
    try_write(state_dir / REPORT_NAME, msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def read_report(state_dir: Path) -> Report | None:
    """The last report of a state directory; DIED where it speaks of a supervisor that is no more."""
    try:
        report = msgspec.json.decode(read_private(state_dir / REPORT_NAME), type=Report)
    except (OSError, msgspec.MsgspecError):
        return None
    if report.alive and not is_held(state_dir / SUPERVISOR_LOCK):
        return msgspec.structs.replace(report, state=State.DIED)
    return report


def describe_report(report: Report) -> str:
    """A line for `tandem status`."""
    return f"service  {_state(report)}" + (f"; {report.reason}" if report.reason else _restarts(report))


def _state(report: Report) -> str:
    who, ago = f"process {report.pid}", span(max(0.0, time.time() - report.since))
    return {
        State.STARTING: f"starting, watched by {who}",
        State.WATCHING: f"watched by {who}",
        State.PAUSING: f"the engine is down and starts again soon ({who})",
        State.ENDING: f"ending ({who})",
        State.ENDED: f"was stopped {ago} ago",
        State.GAVE_UP: f"gave up {ago} ago",
        State.DIED: f"its supervisor ({who}) ended without a word",
    }[report.state]


def _restarts(report: Report) -> str:
    if not report.restarts or report.last_restart is None:
        return ""
    ago = span(max(0.0, time.time() - report.last_restart))
    times = "restarted once" if report.restarts == 1 else f"restarted {report.restarts} times"
    return f"; {times}, the last time {ago} ago: {report.last_cause}"
