"""Where in time the screen stands: at the newest snapshot, or held at an earlier moment."""

from __future__ import annotations

from dataclasses import dataclass

from console.history.timeline import Timeline


@dataclass(frozen=True)
class Playhead:
    """`held` is a time of the timeline's clock; None follows the newest snapshot."""

    held: float | None = None

    @property
    def paused(self) -> bool:
        return self.held is not None

    def toggled(self, timeline: Timeline) -> Playhead:
        """Held where the timeline ends now, or let go; with nothing to hold it stays as it is."""
        if self.held is not None:
            return LIVE
        span = timeline.span()
        return Playhead(span[1]) if span else self

    def stepped(self, timeline: Timeline, seconds: float) -> Playhead:
        """So many seconds on, back where negative: never before the oldest snapshot, and live past the newest."""
        span = timeline.span()
        if span is None or (self.held is None and seconds > 0):
            return self
        oldest, newest = span
        target = (newest if self.held is None else self.held) + seconds
        if seconds > 0 and target >= newest:
            return LIVE
        return Playhead(max(oldest, target))

    def within(self, timeline: Timeline) -> Playhead:
        """Where it stood, or at the oldest snapshot once that moment is forgotten."""
        span = timeline.span()
        return Playhead(max(span[0], self.held)) if span and self.held is not None else self


LIVE = Playhead()
