"""The engine: one thread that owns the device and every slot, and the door through which all others reach it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from engine import records, snapshot
from engine.api import ServedModel
from engine.boot import Parts, boot, plan_roles
from engine.checks import check
from engine.config import EngineConfig
from engine.counters import Ending
from engine.deadlines import overdue
from engine.dispatch import Dispatcher
from engine.inbox import Cancel, Inbox, Submission, draining
from engine.job import new_job
from engine.lifecycle import Lifecycle
from engine.protocol import Health, Loading
from engine.request import EventSink, Request, RequestError
from engine.rounds import Rounds
from engine.state import EngineState

IDLE_PUBLISH_S = 0.25
EXPIRE_EVERY_S = 0.1


class LoadingAborted(Exception):
    """The engine was closed while its model was loading."""


@dataclass(frozen=True, slots=True)
class _Published:
    """A snapshot and when it was taken; `shape` is what made it worth taking at once."""

    health: Health
    at: float
    shape: tuple[int, ...] = ()


class Engine:
    """Serves one model on `config.parallel` slots (implements `engine.api.EnginePort`).

        engine = Engine(EngineConfig(model=path, model_name="..."))
        engine.start()
        engine.wait_ready()
        engine.submit(request, sink)
        engine.close(timeout_s=30)

    Any thread may call the public methods. `turn` is the engine thread's own; a test may call `load` and `turn` itself
    instead of `start`.
    """

    def __init__(self, config: EngineConfig, parts: Parts | None = None) -> None:
        self._config = config
        self._parts = parts or Parts()
        self._clock = self._parts.clock
        self._started = self._clock()
        self._inbox = Inbox(config.queue_limit)
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._draining = False
        self._closing = False
        self._abort = False
        self._failure: BaseException | None = None
        self._state: EngineState | None = None
        self._arrivals = 0
        self._expire_at = 0.0
        self._published = self._loading_snapshot(Loading(stage="starting", done_bytes=0, total_bytes=0, eta_s=None))

    # What others call.

    @property
    def model(self) -> ServedModel | None:
        return None if self._state is None else self._state.served

    def start(self) -> None:
        """Start the engine thread: it loads the model, then serves until `close`."""
        if self._thread is not None:
            raise RuntimeError("the engine was started before")
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded; False where that took longer than `timeout_s`. Raises what loading raised."""
        ready = self._ready.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return ready

    def submit(self, request: Request, sink: EventSink) -> None:
        state = self._state
        if state is not None:
            error = check(request, state.served, state.model.runner.vocab_size)
            if error is not None:
                raise self._inbox.refuse(error)
        self._inbox.submit(request, sink)

    def cancel(self, request_id: str) -> None:
        self._inbox.cancel(request_id)

    def health(self) -> Health:
        published = self._published
        return snapshot.aged(published.health, max(0.0, self._clock() - published.at))

    def drain(self) -> None:
        """Accept nothing more. What runs goes on; what only waits is refused, so that its client can go elsewhere."""
        self._draining = True
        self._inbox.shut(draining)

    def close(self, timeout_s: float = 30.0) -> None:
        """Drain, end what still runs after `timeout_s`, and give everything back. Idempotent."""
        self.drain()
        self._closing = True
        self._inbox.wake()
        if self._thread is None:
            self._shut_down()
        elif not self._ended.wait(timeout_s):
            self._abort = True
            self._inbox.wake()
            self._thread.join(timeout_s)
        else:
            self._thread.join(timeout_s)

    # The engine thread.

    def _run(self) -> None:
        try:
            self.load()
        except BaseException as failure:  # noqa: BLE001 - handed to whoever waits for the model
            self._failure = failure
            self._ready.set()
            self._ended.set()
            return
        while not (self._abort or (self._closing and not self._busy())):
            if not self._guarded_turn():
                self._inbox.sleep(self._pause())
        self._shut_down()

    def load(self) -> None:
        """Load the model and open the door."""
        self._state = state = boot(self._config, self._parts, self._inbox, self._loading)
        self._lifecycle = Lifecycle(state)
        self._dispatcher = Dispatcher(state, self._lifecycle)
        self._rounds = Rounds(state, self._lifecycle)
        self._snapshots = snapshot.SnapshotBuilder(state, self._started)
        state.roles = plan_roles(self._config, self._snapshots.build(self._clock(), draining=False))
        self._publish(at_once=True)
        if not self._draining:
            self._inbox.open(len(state.slots))
        self._ready.set()

    def turn(self) -> bool:
        """One turn of the loop. Whether any row was computed."""
        self._take_inbox()
        self._expire()
        self._dispatcher.run()
        read = self._rounds.read_chunk()
        decoded = self._rounds.joint_round()
        self._publish(at_once=False)
        return read or decoded

    def _take_inbox(self) -> None:
        state = self._serving()
        for item in self._inbox.take():
            match item:
                case Submission(request, sink):
                    self._arrivals += 1
                    job = new_job(request, sink, self._arrivals, self._clock())
                    state.jobs[request.id] = job
                    state.queue.append(job)
                    state.settled = False
                case Cancel(request_id):
                    if (gone := state.jobs.get(request_id)) is not None:
                        self._lifecycle.abandon(gone)
        if self._draining:
            for job in [job for job in state.queue if not job.admitted]:
                self._lifecycle.fail(job, draining(), Ending.REFUSED)

    def _expire(self) -> None:
        now = self._clock()
        if now < self._expire_at:
            return
        self._expire_at = now + EXPIRE_EVERY_S
        for job in tuple(self._serving().jobs.values()):
            error = overdue(job, self._config, now)
            if error is not None:
                self._lifecycle.fail(job, error, Ending.TIMEOUT)

    def _guarded_turn(self) -> bool:
        try:
            return self.turn()
        except Exception as defect:  # noqa: BLE001 - a defect in the loop itself must not leave clients hanging
            records.turn_failed(defect)
            self._end_all(RequestError("the engine failed", status=500, code="engine_error"), defect)
            return False

    def _end_all(self, error: RequestError, cause: BaseException | None) -> None:
        for job in tuple(self._serving().jobs.values()):
            self._lifecycle.fail(job, error, Ending.ERROR, cause)

    def _shut_down(self) -> None:
        if self._state is not None and not self._ended.is_set():
            self._take_inbox()
            self._end_all(draining(), None)
            self._publish(at_once=True)
            self._state.pool.close()
        self._ended.set()

    def _busy(self) -> bool:
        return bool(self._serving().jobs)

    def _pause(self) -> float:
        """How long an idle loop may sleep: until a waiting request must be looked at, and so that ages stay fresh."""
        return min(IDLE_PUBLISH_S, max(0.0, self._dispatcher.next_look() - self._clock()))

    def _serving(self) -> EngineState:
        assert self._state is not None, "the engine is not loaded"
        return self._state

    # Snapshots.

    def _publish(self, *, at_once: bool) -> None:
        """Publish a snapshot where the last one is old, or who runs, waits or has ended changed."""
        state = self._serving()
        now = self._clock()
        ended = sum(state.counters.endings.values()) + state.inbox.refused
        shape = (len(state.running()), len(state.decoding()), len(state.queue), ended)
        state.counters.saw(running=shape[0], decoding=shape[1])
        old = self._published
        if at_once or shape != old.shape or now - old.at >= snapshot.PUBLISH_EVERY_S:
            self._published = _Published(self._snapshots.build(now, draining=self._draining), now, shape)

    def _loading(self, loading: Loading) -> None:
        if self._closing:
            raise LoadingAborted("the engine was closed while its model was loading")
        self._published = self._loading_snapshot(loading)

    def _loading_snapshot(self, loading: Loading) -> _Published:
        now = self._clock()
        health = snapshot.before_serving(
            self._config.parallel, loading, self._parts.probe().read(), now - self._started
        )
        return _Published(health, now)
