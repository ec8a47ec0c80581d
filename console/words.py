"""The glyph and the word that stand for each state, so that no state needs colour to be read."""

from __future__ import annotations

from typing import NamedTuple

from console.tones import Tone
from engine.protocol import Finish, LaneState, RoleState, Status, WaitState


class Word(NamedTuple):
    """A state as it is shown: a glyph, a word, and what it means for the reader."""

    glyph: str
    word: str
    tone: Tone


STATUS_WORDS = {
    Status.OK: Word("●", "ok", Tone.BAR_GOOD),
    Status.LOADING: Word("◌", "loading", Tone.BAR_READ),
    Status.DRAINING: Word("◑", "draining", Tone.BAR_WAIT),
    Status.STALLED: Word("✖", "stalled", Tone.BAR_BAD),
}
CONNECTING_WORD = Word("◌", "connecting", Tone.BAR_READ)
LOST_WORD = Word("✖", "lost", Tone.BAR_BAD)
RECORDING_WORD = Word("▣", "recording", Tone.BAR_READ)
LANE_WORDS = {
    LaneState.IDLE: Word("○", "Idle", Tone.IDLE),
    LaneState.RESTORING: Word("↺", "Restoring", Tone.READ_STRONG),
    LaneState.PREFILLING: Word("▼", "Reading", Tone.READ_STRONG),
    LaneState.YIELDED: Word("‖", "Yielded", Tone.WAIT_STRONG),
    LaneState.DECODING: Word("▶", "Writing", Tone.GOOD_STRONG),
    LaneState.FINISHING: Word("■", "Finishing", Tone.GOOD),
}
WAIT_WORDS = {
    WaitState.SLOT: Word("◔", "waits for a slot", Tone.WAIT_STRONG),
    WaitState.HOME: Word("◔", "waits for its own slot", Tone.WAIT_STRONG),
    WaitState.SLOT0: Word("◔", "waits for slot 0", Tone.WAIT_STRONG),
    WaitState.MEMORY: Word("◕", "waits for memory", Tone.WAIT_STRONG),
}
ROLE_WORDS = {
    RoleState.PLANNED: Word("◇", "planned", Tone.DIM),
    RoleState.LOADED: Word("●", "loaded", Tone.GOOD),
    RoleState.LOADING: Word("◌", "loading", Tone.READ),
    RoleState.UNLOADED: Word("○", "unloaded", Tone.IDLE),
    RoleState.UNLOADED_FOR_MEMORY: Word("▽", "unloaded for memory", Tone.WAIT),
    RoleState.RELOADING: Word("↺", "reloading", Tone.READ),
    RoleState.REFUSED: Word("✖", "refused", Tone.BAD),
}
FINISH_WORDS = {
    Finish.STOP: Word("●", "done", Tone.GOOD),
    Finish.LENGTH: Word("■", "at its limit", Tone.GOOD),
    Finish.ABANDONED: Word("○", "left", Tone.IDLE),
    Finish.CANCELLED: Word("‖", "cancelled", Tone.WAIT),
    Finish.REFUSED: Word("✖", "refused", Tone.BAD),
    Finish.ERROR: Word("✖", "failed", Tone.BAD),
    Finish.TIMEOUT: Word("◔", "timed out", Tone.WAIT),
}
LEVEL_WORDS = {
    "debug": Word("·", "debug", Tone.FAINT),
    "info": Word("○", "info", Tone.DIM),
    "warning": Word("△", "warn", Tone.WAIT_STRONG),
    "error": Word("✖", "error", Tone.BAD_STRONG),
    "critical": Word("✖", "fatal", Tone.BAD_STRONG),
}
