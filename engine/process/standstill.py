"""When a serving engine counts as stuck: for the supervisor, which restarts it, and for systemd's watchdog."""

from __future__ import annotations

from engine.protocol import Health, Status

STUCK_S = 120.0
"""How long the engine thread may take for one turn, or running requests for a token or a chunk, before the engine
counts as stuck. Well above the longest chunk of a large model on a slow processor."""


def standstill(health: Health) -> str | None:
    """What keeps a serving engine from moving, in words; None where it moves, loads or drains."""
    if health.status not in (Status.OK, Status.STALLED):
        return None
    if health.snapshot_age_s > STUCK_S:
        return f"the engine thread has not turned for {health.snapshot_age_s:.0f} s"
    idle = health.last_progress_age_s
    if health.status is Status.STALLED and idle is not None and idle > STUCK_S:
        return f"requests run, and there was no token or chunk for {idle:.0f} s"
    return None
