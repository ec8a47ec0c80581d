"""The glyph and the text of each state: no state needs colour to be read."""

from __future__ import annotations

from typing import NamedTuple

from console.history.phases import Phase
from console.text.spans import StyleRole
from engine.protocol import Finish, LaneState, RoleState, Status, WaitState


class StatusLabel(NamedTuple):
    """A state as it is shown: a glyph, a short text, and the style role of both."""

    glyph: str
    text: str
    style: StyleRole


STATUS_LABELS = {
    Status.OK: StatusLabel("●", "ok", StyleRole.BAR_GOOD),
    Status.LOADING: StatusLabel("◌", "loading", StyleRole.BAR_READ),
    Status.DRAINING: StatusLabel("◑", "draining", StyleRole.BAR_WAIT),
    Status.STALLED: StatusLabel("✖", "stalled", StyleRole.BAR_BAD),
}
CONNECTING_LABEL = StatusLabel("◌", "connecting", StyleRole.BAR_READ)
LOST_LABEL = StatusLabel("✖", "lost", StyleRole.BAR_BAD)
RECORDING_LABEL = StatusLabel("▣", "recording", StyleRole.BAR_READ)
LANE_LABELS = {
    LaneState.IDLE: StatusLabel("○", "Idle", StyleRole.IDLE),
    LaneState.RESTORING: StatusLabel("↺", "Restoring", StyleRole.READ_STRONG),
    LaneState.PREFILLING: StatusLabel("▼", "Reading", StyleRole.READ_STRONG),
    LaneState.YIELDED: StatusLabel("‖", "Yielded", StyleRole.WAIT_STRONG),
    LaneState.DECODING: StatusLabel("▶", "Writing", StyleRole.GOOD_STRONG),
    LaneState.FINISHING: StatusLabel("■", "Finishing", StyleRole.GOOD),
}
WAIT_LABELS = {
    WaitState.SLOT: StatusLabel("◔", "waits for a slot", StyleRole.WAIT_STRONG),
    WaitState.HOME: StatusLabel("◔", "waits for its own slot", StyleRole.WAIT_STRONG),
    WaitState.SLOT0: StatusLabel("◔", "waits for slot 0", StyleRole.WAIT_STRONG),
    WaitState.MEMORY: StatusLabel("◕", "waits for memory", StyleRole.WAIT_STRONG),
}
ROLE_LABELS = {
    RoleState.PLANNED: StatusLabel("◇", "planned", StyleRole.DIM),
    RoleState.LOADED: StatusLabel("●", "loaded", StyleRole.GOOD),
    RoleState.LOADING: StatusLabel("◌", "loading", StyleRole.READ),
    RoleState.UNLOADED: StatusLabel("○", "unloaded", StyleRole.IDLE),
    RoleState.UNLOADED_FOR_MEMORY: StatusLabel("▽", "unloaded for memory", StyleRole.WAIT),
    RoleState.RELOADING: StatusLabel("↺", "reloading", StyleRole.READ),
    RoleState.REFUSED: StatusLabel("✖", "refused", StyleRole.BAD),
}
FINISH_LABELS = {
    Finish.STOP: StatusLabel("●", "done", StyleRole.GOOD),
    Finish.LENGTH: StatusLabel("■", "at its limit", StyleRole.GOOD),
    Finish.ABANDONED: StatusLabel("○", "left", StyleRole.IDLE),
    Finish.CANCELLED: StatusLabel("‖", "cancelled", StyleRole.WAIT),
    Finish.REFUSED: StatusLabel("✖", "refused", StyleRole.BAD),
    Finish.ERROR: StatusLabel("✖", "failed", StyleRole.BAD),
    Finish.TIMEOUT: StatusLabel("◔", "timed out", StyleRole.WAIT),
}
LEVEL_LABELS = {
    "debug": StatusLabel("·", "debug", StyleRole.FAINT),
    "info": StatusLabel("○", "info", StyleRole.DIM),
    "warning": StatusLabel("△", "warn", StyleRole.WAIT_STRONG),
    "error": StatusLabel("✖", "error", StyleRole.BAD_STRONG),
    "critical": StatusLabel("✖", "fatal", StyleRole.BAD_STRONG),
}
# Each glyph fills its cell differently, so that a strip can be read without colour. The text is in the past tense
# because it stands beside the seconds that the phase took.
PHASE_LABELS = {
    Phase.UNSEEN: StatusLabel(" ", "not seen", StyleRole.TRACK),
    Phase.IDLE: StatusLabel("·", "idle", StyleRole.TRACK),
    Phase.WAITING: StatusLabel("┈", "waited", StyleRole.WAIT),
    Phase.RESTORING: StatusLabel("↺", "restored", StyleRole.READ),
    Phase.READING: StatusLabel("═", "read", StyleRole.READ),
    Phase.YIELDED: StatusLabel("‖", "gave way", StyleRole.WAIT),
    Phase.WRITING: StatusLabel("━", "wrote", StyleRole.GOOD),
    Phase.FINISHING: StatusLabel("■", "finished", StyleRole.GOOD_STRONG),
}
