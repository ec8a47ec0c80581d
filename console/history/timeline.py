"""Time on the screen: the interface behind pause, scroll back and replay, and the playhead that stands in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from console.history.rates import History, Track
from engine.protocol import Health


@dataclass(frozen=True)
class Moment:
    """A snapshot and when it was received, in seconds of the timeline's own clock."""

    health: Health
    at: float


@dataclass(frozen=True)
class Gap:
    """A stretch without snapshots, in Unix seconds. `reason` is None where no console recorded."""

    begin: float
    end: float
    reason: str | None


@dataclass(frozen=True)
class TapeView:
    """How the tape stands; times are Unix seconds. `growing`: it is still being recorded."""

    begin: float
    end: float
    position: float
    speed: int
    playing: bool
    growing: bool
    gaps: tuple[Gap, ...]


class Timeline(Protocol):
    """Snapshots in order of time. Times are seconds of one clock, which the timeline's owner chooses."""

    def latest(self) -> Moment | None:
        """The newest snapshot; None where nothing was seen yet."""
        ...

    def at(self, when: float) -> Moment | None:
        """What was on the screen at `when`: the newest snapshot not later, or the oldest where all are later."""
        ...

    def span(self) -> tuple[float, float] | None:
        """The times of the oldest and of the newest snapshot."""
        ...

    def track(self, when: float) -> Track:
        """The rates of the minutes before `when`, as a screen of that moment showed them."""
        ...


def track_of(moments: Iterable[Moment]) -> Track:
    """The rates that snapshots, oldest first, make; one a second is enough."""
    history = History()
    for moment in moments:
        history.add(moment.health, moment.at)
    return history.track()


@dataclass(frozen=True)
class Playhead:
    """`held` is a time of the timeline's clock; None follows the newest snapshot."""

    held: float | None = None

    @property
    def paused(self) -> bool:
        return self.held is not None

    def toggled(self, timeline: Timeline) -> Playhead:
        """Held at the end of the timeline, or live where it was held; unchanged where the timeline is empty."""
        if self.held is not None:
            return LIVE
        span = timeline.span()
        return Playhead(span[1]) if span else self

    def stepped(self, timeline: Timeline, seconds: float) -> Playhead:
        """Moved by so many seconds: not before the oldest snapshot, and live past the newest."""
        span = timeline.span()
        if span is None or (self.held is None and seconds > 0):
            return self
        oldest, newest = span
        target = (newest if self.held is None else self.held) + seconds
        if seconds > 0 and target >= newest:
            return LIVE
        return Playhead(max(oldest, target))

    def within(self, timeline: Timeline) -> Playhead:
        """The same playhead, or one at the oldest snapshot where its moment was dropped."""
        span = timeline.span()
        return Playhead(max(span[0], self.held)) if span and self.held is not None else self


LIVE = Playhead()
