"""Log lines for a stream that may block: a bounded queue that never waits, and the one thread that writes it.

    writer = LineWriter(to_descriptor(2), gap=lambda count: b"... %d lines are missing\\n" % count)
    writer.put(b"a line\\n")      # never blocks, never raises
    writer.dropped               # what /health shows
    writer.close()               # writes what waits, for a bounded time

A line is dropped and counted where the queue is full, because nobody reads the stream, and where the stream takes no
more (a full disk, a reader that has gone). Before the next line that finds room stands one that says how many are
missing.
"""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable

from engine.protocol import LogState

LIMIT_BYTES = 64 << 10
"""Of lines that wait to be written: as much as a pipe holds. A request takes about 600, and `/admin/log` keeps what is
lost here."""

CLOSE_S = 1.0
"""How long the end of a process may wait for its last lines to be written."""

PART_LIMIT = 64 << 10
"""Characters of a line without an end that are held back for it."""

POLL_MS = 1000


class LineWriter:
    """`write` gets whole lines on the writer's own thread, where it may block or raise OSError. `gap` makes the line
    that stands for as many missing ones. Any thread may call the public methods."""

    def __init__(
        self, write: Callable[[bytes], None], *, gap: Callable[[int], bytes], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._write = write
        self._gap = gap
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._held = 0
        self._dropped = 0
        self._unreported = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tandem-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost since the start."""
        return self._dropped

    def state(self) -> LogState:
        return LogState(dropped=self._dropped)

    def put(self, line: bytes) -> None:
        """Leave a line, with its end, for the writer; where the queue is full it is dropped and counted."""
        with self._changed:
            if self._held + len(line) > self._limit or self._closing:
                self._dropped += 1
                self._unreported += 1
                return
            if self._unreported:
                self._enqueue(self._gap(self._unreported))
                self._unreported = 0
            self._enqueue(line)
            self._changed.notify()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits and end. A stream that takes nothing is left behind after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _enqueue(self, line: bytes) -> None:
        self._queue.append(line)
        self._held += len(line)

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                self._write(line)
                lost = 0
            except OSError:
                lost = 1
            with self._changed:
                self._held -= len(line)
                self._dropped += lost
                self._unreported += lost

    def _next(self) -> bytes | None:
        """The next line; None once closing and nothing waits."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            return self._queue.popleft()


class LineHandler(logging.Handler):
    """Leaves formatted records to a `LineWriter`."""

    def __init__(self, writer: LineWriter, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._writer = writer
        self._encode = encode

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._encode(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a record that cannot be shown must not end what it is about
            self.handleError(record)
            return
        self._writer.put(line)


class LineStream(io.TextIOBase):
    """Stands for `sys.stdout` and `sys.stderr` where a `LineWriter` has the stream: what libraries, warnings and
    tracebacks write waits in the same queue."""

    def __init__(self, writer: LineWriter, encode: Callable[[str], bytes], descriptor: int, *, terminal: bool) -> None:
        super().__init__()
        self._writer = writer
        self._encode = encode
        self._descriptor = descriptor
        self._terminal = terminal
        self._lock = threading.Lock()
        self._part = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        with self._lock:
            whole, end, self._part = (self._part + text).rpartition("\n")
            if len(self._part) > PART_LIMIT:
                whole, end, self._part = whole + end, self._part, ""
        if end:
            self._writer.put(self._encode(whole + end))
        return len(text)

    def flush(self) -> None:
        with self._lock:
            part, self._part = self._part, ""
        if part:
            self._writer.put(self._encode(part))


def to_descriptor(descriptor: int) -> Callable[[bytes], None]:
    """Writes whole lines to a file descriptor, blocking or not, for as long as it takes. Raises OSError."""

    def write(line: bytes) -> None:
        while line:
            try:
                line = line[os.write(descriptor, line) :]
            except BlockingIOError:
                room = select.poll()
                room.register(descriptor, select.POLLOUT)
                room.poll(POLL_MS)

    return write


def set_nonblocking(descriptor: int) -> None:
    """Make writes of C libraries, which no queue can catch, fail where they would block.

    The setting belongs to the open file, which a shell or a parent shares; so a pipe or a terminal is opened anew. A
    socket (systemd's journal) cannot be, and is the service's own. Where opening is refused (another user's terminal)
    all stays as it was.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        os.set_blocking(descriptor, False)
    elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return
        os.dup2(own, descriptor)
        os.close(own)
