"""What a lane did in one second of the past: the phases that a timeline strip is drawn from, with their signs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from console.tones import Tone
from console.words import Word
from engine.protocol import Lane, LaneState


class Phase(StrEnum):
    """One second of a lane. `UNSEEN` where no snapshot came."""

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
# Each fills its cell differently, so that a strip is read without colour; the past tense says how long it took.
PHASE_SIGNS = {
    Phase.UNSEEN: Word(" ", "not seen", Tone.TRACK),
    Phase.IDLE: Word("·", "idle", Tone.TRACK),
    Phase.WAITING: Word("┈", "waited", Tone.WAIT),
    Phase.RESTORING: Word("↺", "restored", Tone.READ),
    Phase.READING: Word("═", "read", Tone.READ),
    Phase.YIELDED: Word("‖", "gave way", Tone.WAIT),
    Phase.WRITING: Word("━", "wrote", Tone.GOOD),
    Phase.FINISHING: Word("■", "finished", Tone.GOOD_STRONG),
}
# Among phases that took equally long, the one in which less happened is shown.
_SHOWN_FIRST = (Phase.YIELDED, Phase.WAITING, Phase.RESTORING, Phase.FINISHING, Phase.READING, Phase.WRITING)


def phase_of(lane: Lane) -> Phase:
    """What the lane does now. A read that stands still for a reason, as while another prompt has its turn, waits."""
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
