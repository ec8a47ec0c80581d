"""The newest snapshot, from the engine thread to whoever asks: published when it matters, read without waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.core import snapshot
from engine.core.state import Clock, EngineState
from engine.memory.probe import MemoryProbe
from engine.process.ledger.writer import Ledger
from engine.protocol import Health, LedgerState, Loading

PUBLISH_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class _Published:
    """A snapshot and when it was taken; `shape` is what made it worth taking at once."""

    health: Health
    at: float
    shape: tuple[int, ...] = ()


class Publisher:
    """Holds one immutable snapshot. `loading`, `serve` and `publish` belong to the engine thread, `read` to anyone."""

    def __init__(
        self, requested: int, clock: Clock, probe: MemoryProbe, ledger: Ledger | None, refused: Callable[[], int]
    ) -> None:
        """`requested` slots were asked for; `probe` shows the memory while nothing is loaded, `ledger` is the one that
        is kept. `refused` counts the requests that did not get in."""
        self._requested = requested
        self._clock = clock
        self._probe = probe
        self._ledger = ledger
        self._refused = refused
        self._started = clock()
        self._state: EngineState | None = None
        self.loading(Loading(stage="starting", done_bytes=0, total_bytes=0, eta_s=None))

    def read(self) -> Health:
        """The newest snapshot, as old as it is now.

        While the model loads nothing may publish one for a minute (a compiler runs), and what little it says is read
        on the spot."""
        newest = self._newest
        if newest.health.loading is not None:
            return self._before_serving(newest.health.loading)
        return snapshot.aged(newest.health, max(0.0, self._clock() - newest.at))

    def loading(self, loading: Loading) -> None:
        """Publish how far loading is."""
        self._newest = _Published(self._before_serving(loading), self._clock())

    def serve(self, state: EngineState) -> Health:
        """Show `state` from now on. Returns a first snapshot of it, which `publish` is still to make public."""
        self._state = state
        self._snapshots = snapshot.SnapshotBuilder(state, self._started)
        return self._snapshots.build(self._clock(), draining=False)

    def publish(self, *, draining: bool, at_once: bool = False) -> None:
        """Publish a snapshot where the newest is old, or who runs, waits or has ended changed."""
        state = self._state
        assert state is not None
        now = self._clock()
        ended = state.counters.ended + state.inbox.refused
        shape = (len(state.running()), len(state.decoding()), len(state.queue), ended)
        state.counters.saw(running=shape[0], decoding=shape[1])
        if at_once or shape != self._newest.shape or now - self._newest.at >= PUBLISH_EVERY_S:
            self._newest = _Published(self._snapshots.build(now, draining=draining), now, shape)

    def _before_serving(self, loading: Loading) -> Health:
        uptime = self._clock() - self._started
        ledger = LedgerState() if self._ledger is None else self._ledger.state()
        return snapshot.before_serving(
            self._requested,
            loading=loading,
            reading=self._probe.read(),
            uptime_s=uptime,
            ledger=ledger,
            refused=self._refused(),
        )
