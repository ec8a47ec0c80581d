"""The engine: one thread that owns the device and every slot, and the door through which all others reach it."""

from __future__ import annotations

import threading

from engine.api import MetersView, ServedModel
from engine.config import EngineConfig
from engine.core import integrity as books
from engine.core import log_lines as records
from engine.core.boot import Parts, boot, open_ledger
from engine.core.dispatch import Dispatcher
from engine.core.intake import Intake
from engine.core.lifecycle import Lifecycle
from engine.core.meters import Meters
from engine.core.publisher import Publisher
from engine.core.rounds import Rounds
from engine.core.scheduling.inbox import Inbox, draining
from engine.core.scheduling.refusals import check
from engine.core.state import EngineState
from engine.memory.probe import SteadyProbe
from engine.process.ledger.entry import refused_row, unread_row
from engine.process.ledger.reader import LedgerReader
from engine.protocol import Health, LedgerRow, Loading
from engine.request import Ending, EventSink, Request, RequestError

IDLE_PUBLISH_S = 0.25


class LoadingAborted(Exception):
    """The engine was closed while its model was loading."""


class Engine:
    """Serves one model on `config.parallel` slots (implements `engine.api.EnginePort`).

        engine = Engine(EngineConfig(model=path, model_name="..."))
        engine.start()
        engine.wait_ready()
        engine.submit(request, sink)
        engine.close(timeout_s=30)

    Any thread may call the public methods but `load` and `turn`, which are the engine thread's own; a test may call
    these two itself instead of `start`.
    """

    def __init__(self, config: EngineConfig, parts: Parts | None = None) -> None:
        self._config = config
        self._parts = parts or Parts()
        self._clock = self._parts.clock
        self._inbox = Inbox(config.queue_limit)
        self._ledger = open_ledger(config, self._parts.wall)
        probe = SteadyProbe(self._parts.probe(), self._clock)
        self._publisher = Publisher(config.parallel, self._clock, probe, self._ledger, lambda: self._inbox.refused)
        self._state: EngineState | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._draining = False
        self._closing = False
        self._abort = False
        self._failure: BaseException | None = None
        self._integrity_checked_at = 0

    @property
    def model(self) -> ServedModel | None:
        return None if self._state is None else self._state.served

    @property
    def failure(self) -> BaseException | None:
        """Why the engine cannot serve: what loading raised. None while it can, or still loads."""
        return self._failure

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
        try:
            if state is not None:
                error = check(request, state.served, state.model.runner.vocab_size)
                if error is not None:
                    raise error
            self._inbox.submit(request, sink)
        except RequestError as error:
            self._refused(refused_row(request, error.message, wall=self._parts.wall()))
            raise

    def refuse(self, request_id: str, client: str, error: RequestError) -> None:
        self._refused(unread_row(request_id, client, error.message, wall=self._parts.wall()))

    def _refused(self, row: LedgerRow) -> None:
        """The one place that counts a request that was refused before it waited: for `/health`, `/metrics` and the
        ledger alike. One that waited is counted where it ends (`lifecycle`)."""
        self._inbox.count_refusal()
        if self._ledger is not None:
            self._ledger.add(row)

    def cancel(self, request_id: str) -> None:
        self._inbox.cancel(request_id)

    def end(self, request_id: str, error: RequestError, ending: Ending) -> None:
        self._inbox.end(request_id, error, ending)

    @property
    def ledger(self) -> LedgerReader | None:
        return None if self._ledger is None else LedgerReader(self._ledger.path)

    def health(self) -> Health:
        return self._publisher.read()

    def meters(self) -> MetersView:
        return Meters().view() if self._state is None else self._state.meters.view()

    def drain(self) -> bool:
        """Accept nothing more. What runs goes on; what only waits is refused, so that its client can go elsewhere.
        Whether it did not drain before."""
        begins, self._draining = not self._draining, True
        self._inbox.shut(draining)
        return begins

    def resume(self) -> bool:
        """Accept requests again after `drain`; whether it was draining. Not once it closes."""
        if not self._draining or self._closing:
            return False
        self._draining = False
        self._inbox.unshut()
        self._inbox.wake()
        return True

    def close(self, timeout_s: float = 30.0) -> None:
        """Drain, end what still runs after `timeout_s`, and give everything back. Idempotent."""
        self.drain()
        self._closing = True
        self._inbox.wake()
        if self._thread is None:
            self._shut_down()
            return
        if not self._ended.wait(timeout_s):
            self._abort = True
            self._inbox.wake()
        self._thread.join(timeout_s)

    def load(self) -> None:
        """Load the model and open the door."""
        if self._ledger is not None:
            self._ledger.start()
        state = boot(self._config, self._parts, self._inbox, self._progress)
        state.ledger = self._ledger
        lifecycle = Lifecycle(state)
        self._intake = Intake(state, lifecycle)
        self._dispatcher = Dispatcher(state, lifecycle)
        self._rounds = Rounds(state, lifecycle)
        state.roles.plan(self._publisher.serve(state), self._clock())
        self._state = state
        self._inbox.open(len(state.slots))
        # Published last: whoever reads that the engine is ready must find the door open.
        self._publisher.publish(draining=self._draining, at_once=True)
        self._ready.set()

    def turn(self) -> bool:
        """One turn of the loop. Whether any row was computed."""
        self._intake.take()
        if self._draining:
            self._intake.refuse_waiting()
        self._intake.expire()
        self._dispatcher.run()
        read = self._rounds.prefill_chunk()
        decoded = self._rounds.decode_round()
        self._check_integrity()
        idle = not (read or decoded)
        self._look_at_roles(idle=idle)
        self._publisher.publish(draining=self._draining)
        return not idle

    def _run(self) -> None:
        try:
            self.load()
        except BaseException as failure:  # noqa: BLE001 - handed to whoever waits for the model
            self._failure = failure
            self._close_ledger()
            self._ready.set()
            self._ended.set()
            return
        while not (self._abort or (self._closing and not self._serving().requests)):
            if not self._guarded_turn():
                self._inbox.sleep(self._pause())
        self._shut_down()

    def _guarded_turn(self) -> bool:
        try:
            return self.turn()
        except Exception as defect:  # noqa: BLE001 - a defect in the loop itself must not leave clients hanging
            records.turn_failed(defect)
            self._intake.end_all(RequestError("the engine failed", status=500, code="engine_error"), defect)
            return False

    def _check_integrity(self) -> None:
        """Once each time the engine falls idle."""
        state = self._serving()
        ended = state.counters.ended
        if state.requests or ended == self._integrity_checked_at:
            return
        self._integrity_checked_at = ended
        state.defect = books.find_defect(state)
        if state.defect is not None:
            records.integrity_failed(state.defect)

    def _look_at_roles(self, *, idle: bool) -> None:
        """Plan the roles again where memory may have changed since."""
        roles = self._serving().roles
        now = self._clock()
        if roles.due(now, idle=idle):
            roles.plan(self._publisher.read(), now)

    def _pause(self) -> float:
        """How long an idle loop may sleep: until a waiting request must be looked at, and so that ages stay fresh."""
        return min(IDLE_PUBLISH_S, max(0.0, self._dispatcher.next_look() - self._clock()))

    def _shut_down(self) -> None:
        if self._state is not None and not self._ended.is_set():
            self._intake.take()
            self._intake.end_all(draining(), None)
            self._publisher.publish(draining=True, at_once=True)
            self._state.pool.close()
        self._close_ledger()
        self._ended.set()

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _progress(self, loading: Loading) -> None:
        if self._closing:
            raise LoadingAborted("the engine was closed while its model was loading")
        self._publisher.loading(loading)

    def _serving(self) -> EngineState:
        assert self._state is not None, "the engine is not loaded"
        return self._state
