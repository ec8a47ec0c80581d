"""A recording that plays: its position and speed, and the timeline that it is for the app."""

from __future__ import annotations

import time
from collections.abc import Callable

from console.history.rates import History, Track
from console.history.recorder import GAP_S
from console.history.recording import RecordedState, Recording
from console.history.timeline import Gap, Moment, TapeView

SPEEDS = (1, 4, 16)
# A step forward by more than this builds the rates anew.
_NEAR_S = 30.0
# Seconds before a moment from which its rates are built after a jump. More would take too long.
_REBUILT_S = 60.0


class Tape:
    """Plays one recording. `clock` gives monotonic seconds.

    It is a `Timeline` whose newest snapshot is the one at the position. Stretches that no console recorded are passed
    over while it plays; one whose file grows plays on as it does.
    """

    def __init__(self, recording: Recording, clock: Callable[[], float] = time.monotonic) -> None:
        self._recording = recording
        self._clock = clock
        self._from = recording.begin
        self._since = clock()
        self._playing = True
        self._speed = SPEEDS[0]
        self._growing = False
        self._gaps = recording.gaps()
        self._rates = _Rates(recording)

    @property
    def position(self) -> float:
        """Where it stands, in Unix seconds."""
        passed = (self._clock() - self._since) * self._speed if self._playing else 0.0
        position = min(self._from + passed, self._recording.end)
        inside = self._unrecorded(position) if self._playing else None
        if inside is None:
            return position
        self.go_to(inside.end)
        return inside.end

    @property
    def begin(self) -> float:
        """The first moment of the recording."""
        return self._recording.begin

    @property
    def end(self) -> float:
        """The last one so far."""
        return self._recording.end

    def view(self) -> TapeView:
        return TapeView(
            begin=self._recording.begin,
            end=self._recording.end,
            position=self.position,
            speed=self._speed,
            playing=self._playing,
            growing=self._growing,
            gaps=self._gaps,
        )

    def refresh(self) -> None:
        """Look again how far the recording reaches; raises NotARecording."""
        end = self._recording.end
        self._recording.refresh()
        self._growing = self._recording.end != end
        if self._growing:
            # Held at the old end until now, it goes on from there.
            self.go_to(min(self._place(), end))
            self._gaps = self._recording.gaps()

    def state(self) -> RecordedState:
        """The state of the console at the position; raises NotARecording."""
        return self._recording.state_at(self.position)

    def toggle(self) -> None:
        """Play, or stand still; at the end, play from the beginning."""
        position = self.position
        if not self._playing and position >= self._recording.end and not self._growing:
            position = self._recording.begin
        self._playing = not self._playing
        self.go_to(position)

    def step(self, seconds: float) -> None:
        """Go so many seconds on, or back where negative."""
        self.go_to(self.position + seconds)

    def go_to(self, when: float) -> None:
        """Go to a moment, or to the end that is nearer to it."""
        self._from = max(self._recording.begin, min(when, self._recording.end))
        self._since = self._clock()

    def faster(self, steps: int) -> None:
        """The next speed, or the one before where negative."""
        position = self.position
        place = SPEEDS.index(self._speed) + steps
        self._speed = SPEEDS[max(0, min(place, len(SPEEDS) - 1))]
        self.go_to(position)

    def latest(self) -> Moment | None:
        return self.at(self.position)

    def at(self, when: float) -> Moment | None:
        state = self._recording.state_at(when)
        return Moment(state.health, state.at) if state.health is not None else None

    def span(self) -> tuple[float, float] | None:
        return (self._recording.begin, self._recording.end)

    def track(self, when: float) -> Track:
        return self._rates.track(when)

    def carries(self, when: float) -> bool:
        """Whether the rates before a moment are quick to compute, because they continue those known."""
        return self._rates.near(when)

    def _place(self) -> float:
        return self._from + ((self._clock() - self._since) * self._speed if self._playing else 0.0)

    def _unrecorded(self, position: float) -> Gap | None:
        return next((gap for gap in self._gaps if gap.reason is None and gap.begin + GAP_S < position < gap.end), None)


class _Rates:
    """The rates before a moment: continued while it moves forward, built anew after a jump."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._history = History()
        self._until = float("-inf")

    def near(self, when: float) -> bool:
        """Whether the moment is a short step forward."""
        return self._until <= when <= self._until + _NEAR_S

    def track(self, when: float) -> Track:
        if not self.near(when):
            self._history, self._until = History(), when - _REBUILT_S
        for state in self._recording.seconds(self._until, when):
            if state.health is not None:
                self._history.add(state.health, state.at)
        self._until = when
        return self._history.track()
