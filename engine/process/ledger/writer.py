"""The ledger's writer: a thread of its own behind a bounded queue, so that no disk ever holds the engine up.

    ledger = Ledger(state_dir / FILE_NAME, days=30, rows=1_000_000)
    ledger.start()
    ledger.add(row)          # never blocks, never raises
    ledger.state()           # what /health shows
    ledger.close()

While the file cannot be written (damaged, read-only, a full disk, a newer schema) that is said once in the log and
always in `/health`, rows wait in the queue, and the file is tried again every few seconds. Rows over the queue's limit
are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from engine.process.ledger.retention import RetentionClock
from engine.process.ledger.store import LedgerStore, LedgerUnusable
from engine.protocol import LedgerRow, LedgerState

log = logging.getLogger("tandem.ledger")

QUEUE_LIMIT = 4096
BATCH_ROWS = 512
GATHER_S = 0.2
"""How long rows are gathered for one commit: what a kill can lose."""

RETRY_S = 5.0
PRUNE_EVERY_S = 300.0
DAY_S = 86_400.0


class Ledger:
    """`days` and `rows` bound what is kept. `wall` says the Unix time, `steady` the
    seconds that passed. Any thread may call the public methods."""

    def __init__(
        self,
        path: Path,
        *,
        days: float,
        rows: int,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        queue_limit: int = QUEUE_LIMIT,
        retry_s: float = RETRY_S,
    ) -> None:
        self.path = path
        self._days = days
        self._rows = rows
        self._wall = wall
        self._steady = steady
        self._clock = RetentionClock(wall(), steady())
        self._queue_limit = queue_limit
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._queue: deque[LedgerRow] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._store: LedgerStore | None = None
        self._written = 0
        self._dropped = 0
        self._defect: str | None = None
        self._unpruned = 0
        self._prune_at = 0.0

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tandem-ledger", daemon=True)
            self._thread.start()

    def add(self, row: LedgerRow) -> None:
        """Leave a row for the writer; where the queue is full it is dropped and counted."""
        with self._lock:
            if len(self._queue) >= self._queue_limit:
                self._dropped += 1
                return
            self._queue.append(row)
        self._wake.set()

    def state(self) -> LedgerState:
        return LedgerState(enabled=True, written=self._written, dropped=self._dropped, defect=self._defect)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits and end. A disk that hangs is left behind after `timeout_s`."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        well = self._try(self._open)
        while not self._closing.is_set():
            if well:
                self._wake.wait(PRUNE_EVERY_S)
            self._closing.wait(GATHER_S if well else self._retry_s)
            self._wake.clear()
            well = self._try(self._write_all)
        if not self._try(self._write_all):
            with self._lock:
                self._dropped += len(self._queue)
            log.warning("the ledger misses %d requests: %s", self._dropped, self._defect)
        if self._store is not None:
            self._store.close()

    def _try(self, step: Callable[[], object]) -> bool:
        """Run a step on the file; whether it went well. A change is said in the log."""
        try:
            step()
        except LedgerUnusable as why:
            self._reopen_later()
            if str(why) != self._defect:
                log.warning("the ledger is not written, serving goes on: %s", why)
            self._defect = str(why)
            return False
        except Exception as defect:
            with self._lock:
                lost = len(self._queue)
                self._dropped += lost
                self._queue.clear()
            log.error("%d requests are missing in the ledger: %s", lost, type(defect).__name__, exc_info=defect)
            return True
        if self._defect is not None:
            log.info("the ledger is written again")
            self._defect = None
        return True

    def _open(self) -> LedgerStore:
        store = self._store
        if store is not None and store.in_place():
            return store
        self._reopen_later()
        self._store = LedgerStore(self.path)
        known = self._store.believed()
        self._clock = RetentionClock(self._wall() if known is None else known, self._steady())
        self._prune_at = 0.0
        return self._store

    def _reopen_later(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _write_all(self) -> None:
        store = self._open()
        while batch := self._next_batch():
            store.append(batch)
            with self._lock:
                for _ in batch:
                    self._queue.popleft()
            self._written += len(batch)
            self._unpruned += len(batch)
        # By a clock that nobody sets: one that was set back would hold the next look up for as long.
        now = time.monotonic()
        if now >= self._prune_at or self._unpruned > max(100, self._rows // 20):
            # Rows that a jump of the clock would age stay until the clock has proved itself.
            until = self._clock.now(self._wall(), self._steady())
            store.prune(before=until - self._days * DAY_S, rows=self._rows, believed=self._clock.believed)
            self._unpruned = 0
            self._prune_at = now + PRUNE_EVERY_S

    def _next_batch(self) -> list[LedgerRow]:
        """Rows stay in the queue until they are committed."""
        with self._lock:
            return list(islice(self._queue, BATCH_ROWS))
