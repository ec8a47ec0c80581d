"""The service: lock and sockets first, then the engine and HTTP side by side, then a bounded drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import uvloop

from engine.api import EnginePort
from engine.config import CLOSING_S, EngineConfig, ServiceConfig
from engine.core.snapshot import version
from engine.http.app import App
from engine.http.server import AppServer
from engine.process.descriptors import raise_limit
from engine.process.keyring import SecretsUnusable, require_keys
from engine.process.listening import HostNotAllowed, Listening, PortInUse, bind
from engine.process.log_ring import LogRing
from engine.process.notify import Notifier, unit_name
from engine.process.owner_socket import OwnerSocket, owner_socket
from engine.process.process_state import ProcessState
from engine.process.state_dir import (
    ServiceRecord,
    StateDirLocked,
    StateDirUnusable,
    lock_state_dir,
    remove_record,
    write_record,
)
from engine.protocol import LogState, StateDirState
from engine.request import Ending, RequestError

__all__ = [
    "HostNotAllowed",
    "PortInUse",
    "SecretsUnusable",
    "ServiceConfig",
    "StateDirLocked",
    "StateDirUnusable",
    "run",
]

log = logging.getLogger("tandem.service")

POLL_S = 0.05
LOAD_LOOK_S = 0.5
FLUSH_S = 1.0
"""How long final events may take to reach their clients once the drain is over."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter from another. The engine thread gives it up around every native call and
takes it back after; beside a long parse, Python's default of 5 ms would be paid at each of these."""

CLOSE_S = 5.0
"""How long the engine may take to end once nothing runs in it."""

FAILED_EXIT = 1


class OwnedEngine(EnginePort, Protocol):
    """An engine whose life the service runs. `start` returns at once and loads on the engine's own thread."""

    def start(self) -> None: ...

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait for the model; raises what loading raised."""
        ...

    def close(self, timeout_s: float) -> None: ...


def run(
    config: EngineConfig,
    service: ServiceConfig,
    *,
    log_state: Callable[[], LogState] = LogState,
    unwritten: Sequence[str] = (),
    open_engine: Callable[[EngineConfig], OwnedEngine] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code: 0 after a drain, 1 where the engine failed.

    `log_state` says how many log lines were lost; log handlers must not block. `unwritten` are sentences on files of
    the state directory that the caller could not write.

    Before anything is loaded, raises SecretsUnusable, HostNotAllowed, StateDirUnusable, StateDirLocked or PortInUse. A
    second signal ends the process at once, with exit code 1.
    """
    require_keys(service.host, service.secrets_file)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    notifier = Notifier.take()
    with ExitStack() as stack:
        stack.enter_context(_stoppable())
        if config.state_dir is not None:
            stack.enter_context(lock_state_dir(config.state_dir))
        listening = stack.enter_context(contextlib.closing(bind(service.host, service.port)))
        owner = None
        if config.state_dir is not None:
            owner = stack.enter_context(owner_socket(config.state_dir))
            record = _record(listening, owner, unit_name() if notifier.address else None)
            unwritten = [*unwritten, *filter(None, [write_record(config.state_dir, record)])]
            stack.callback(remove_record, config.state_dir)
        ring = stack.enter_context(_kept_log())
        raise_limit()
        for sentence in unwritten:
            log.warning("serving goes on without it: %s", sentence)
        process = ProcessState(log_state, StateDirState(defect="; ".join(unwritten) or None))
        log.info("loading %s; /health at %s says how far it is", config.model_name, listening.url)
        try:
            engine = (open_engine or _open_engine)(config)
        except KeyboardInterrupt:
            return 0
        served = _Service(
            engine,
            service,
            listening=listening,
            owner=owner,
            state_dir=config.state_dir,
            notifier=notifier,
            ring=ring,
            process=process,
        )
        return uvloop.run(served.serve())


@contextmanager
def _stoppable() -> Iterator[None]:
    """Before the loop takes signals over, SIGTERM raises KeyboardInterrupt as SIGINT does, so that the lock and the
    record are given back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _kept_log() -> Iterator[LogRing]:
    """A ring that keeps what this process logs."""
    ring = LogRing()
    root = logging.getLogger()
    root.addHandler(ring)
    try:
        yield ring
    finally:
        root.removeHandler(ring)


def _open_engine(config: EngineConfig) -> OwnedEngine:
    """The real one; imported late, because it brings torch, which a refused start should not pay for."""
    from engine.core.loop import Engine

    return Engine(config)


def _record(listening: Listening, owner: OwnerSocket | None, unit: str | None) -> ServiceRecord:
    return ServiceRecord(
        pid=os.getpid(),
        url=listening.url,
        started=time.time(),
        version=version(),
        unit=unit,
        socket=str(owner.path) if owner is not None else None,
    )


class _Service:
    """One run of the service on one event loop."""

    def __init__(
        self,
        engine: OwnedEngine,
        service: ServiceConfig,
        *,
        listening: Listening,
        owner: OwnerSocket | None,
        state_dir: Path | None,
        notifier: Notifier,
        ring: LogRing,
        process: ProcessState,
    ) -> None:
        self._engine = engine
        self._config = service
        self._listening = listening
        self._state_dir = state_dir
        self._notifier = notifier
        self._app = App(engine, service, version(), ring, process)
        self._server = AppServer(self._app, owner)
        limits = self._app.connections.limits
        log.info("connections: at most %d, %d for one other machine", limits.connections, limits.per_address)
        self._signalled = asyncio.Event()

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        # A search for garbage stops every thread, for a fifth of a second among what loading makes.
        gc.disable()
        self._engine.start()
        serving = asyncio.create_task(self._server.serve(self._listening.sockets))
        telling = asyncio.create_task(self._notifier.keep_told(self._engine.health, time.monotonic))
        try:
            code = await self._until_over(serving)
            self._notifier.stopping(self._config.drain_timeout_s + CLOSING_S)
            await self._drain()
        finally:
            telling.cancel()
            self._server.should_exit = True
            await serving
            await asyncio.to_thread(self._engine.close, CLOSE_S)
            gc.enable()
        return code

    def _on_signal(self) -> None:
        if not self._signalled.is_set():
            self._signalled.set()
            return
        # Threads inside a kernel cannot be asked to stop, and whoever signals twice does not want to wait for them.
        if self._state_dir is not None:
            remove_record(self._state_dir)
        os._exit(FAILED_EXIT)

    async def _until_over(self, serving: asyncio.Task[None]) -> int:
        """Wait for a signal (0), a model that does not load or a server that ends by itself (1, after a line)."""
        signalled = asyncio.create_task(self._signalled.wait())
        loaded = asyncio.create_task(self._loaded())
        # After a signal nobody asks why the load was given up.
        loaded.add_done_callback(_failure_of)
        try:
            await asyncio.wait({signalled, loaded, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not self._signalled.is_set() and (failure := _failure_of(loaded)) is not None:
                log.error("the model could not be loaded: %s", _one_line(failure))
                return FAILED_EXIT
            # What is there now stays: later searches leave it out.
            gc.freeze()
            gc.enable()
            if loaded.done() and (model := self._engine.model) is not None:
                slots = self._engine.health().parallel.slots
                log.info("ready at %s: %s, %d slots", self._listening.url, model.name, slots)
            await asyncio.wait({signalled, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            signalled.cancel()
            loaded.cancel()
        if not self._signalled.is_set():
            log.error("the HTTP server ended by itself")
            return FAILED_EXIT
        return 0

    async def _loaded(self) -> bool:
        """Wait for the model; raises what loading raised. In short waits: a thread that waits for the model would keep
        the process until a compiler is done that nobody wants any more."""
        while not await asyncio.to_thread(self._engine.wait_ready, LOAD_LOOK_S):
            pass
        return True

    async def _drain(self) -> None:
        """Accept nothing more; what runs may finish within the drain's limit, then gets a final error event."""
        self._app.admin.ending = True
        self._engine.drain()
        if not await self._all_done_within(self._config.drain_timeout_s):
            self._end_open()
            await self._all_done_within(FLUSH_S)

    def _end_open(self) -> None:
        limit = f"{self._config.drain_timeout_s:g} s (TANDEM_DRAIN_TIMEOUT)"
        message = f"the server ended before this answer was complete, which did not end within {limit}"
        error = RequestError(message, status=503, code="draining", retry_after=5)
        self._app.streams.end_all(error, Ending.TIMEOUT)

    async def _all_done_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._app.streams.count:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True


def _failure_of(task: asyncio.Task[bool]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _one_line(failure: BaseException) -> str:
    return " ".join(str(failure).split()) or type(failure).__name__
