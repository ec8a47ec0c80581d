"""The phase of a lane in one second of the past. A timeline strip is drawn from a sequence of phases."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from engine.protocol import Lane, LaneState


class Phase(StrEnum):
    """What a lane did in one second; `UNSEEN` where no snapshot came."""

    WAITING = "waiting"
    RESTORING = "restoring"
    READING = "reading"
    YIELDED = "yielded"
    WRITING = "writing"
    FINISHING = "finishing"
    IDLE = "idle"
    UNSEEN = "unseen"


_PHASES = {
    LaneState.IDLE: Phase.IDLE,
    LaneState.RESTORING: Phase.RESTORING,
    LaneState.PREFILLING: Phase.READING,
    LaneState.YIELDED: Phase.YIELDED,
    LaneState.DECODING: Phase.WRITING,
    LaneState.FINISHING: Phase.FINISHING,
}
# Where several phases took equally long, the first of them in this order is shown.
_SHOWN_FIRST = (Phase.YIELDED, Phase.WAITING, Phase.RESTORING, Phase.FINISHING, Phase.READING, Phase.WRITING)


def phase_of(lane: Lane) -> Phase:
    """What the lane does now. A prefill that does not advance, for example while another prompt has its turn, counts as
    waiting."""
    return Phase.WAITING if lane.state is LaneState.PREFILLING and lane.reason else _PHASES[lane.state]


def seconds_by_phase(phases: Sequence[Phase]) -> dict[Phase, int]:
    """How many seconds each phase took, in the order in which a request goes through them."""
    counts = {phase: phases.count(phase) for phase in Phase}
    return {phase: seconds for phase, seconds in counts.items() if seconds}


def dominant(phases: Sequence[Phase]) -> Phase:
    """The phase that took most of the seconds, of which there is at least one."""
    if phases.count(phases[0]) == len(phases):
        return phases[0]
    counts = seconds_by_phase(phases)
    most = max(counts.values())
    longest = [phase for phase, seconds in counts.items() if seconds == most]
    return next((phase for phase in _SHOWN_FIRST if phase in longest), longest[0])
