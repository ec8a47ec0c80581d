"""Writes recordings: a SQLite file of snapshots and failed polls, and the thread that writes it.

Half a minute of snapshots is one compressed block (`codec.py`). The lines of the block that is not yet full are rows of
`tail`, so that a killed console loses half a second and a reader can follow while the file is written.
"""

from __future__ import annotations

import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from console.history import first_format
from console.history.codec import BLOCK_SNAPSHOTS, Encoder, pack, unpack

# "TdmR" in the file's header says that it is ours, the version which tables it holds.
APPLICATION_ID = 0x54646D52
SCHEMA = 2
# Times are microseconds of Unix time and never repeat or go back in a file.
TABLES = """
CREATE TABLE session (id INTEGER PRIMARY KEY, began INTEGER NOT NULL, url TEXT NOT NULL);
CREATE TABLE block (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, session INTEGER NOT NULL, snapshots INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX block_span ON block (first, last, session);
CREATE TABLE tail (at INTEGER PRIMARY KEY, session INTEGER NOT NULL, line BLOB NOT NULL);
CREATE TABLE miss (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, session INTEGER NOT NULL, tries INTEGER NOT NULL,
    reason TEXT NOT NULL
);
"""
# Snapshots come four times a second. A pause longer than this is a gap in the recording.
GAP_S = 3.0
# How long a snapshot may be in memory only.
BATCH_S = 0.5
# Entries that wait for the disk: more than a minute of them, after which recording stops.
_WAITING = 512
_LEAVING_S = 10.0
# A day of eight busy lanes takes 168 MB. Levels above 6 save nothing; with 500 waiting requests level 9 takes 2 ms a
# snapshot, level 6 takes 0.3 ms.
_LEVEL = 6
_HEADER = 100
_MAGIC = b"SQLite format 3\x00"


class NotARecording(Exception):
    """The file cannot be used; the text is one line that names it. `damaged`: it is a recording, but not whole."""

    def __init__(self, text: str, *, damaged: bool = False) -> None:
        super().__init__(text)
        self.damaged = damaged


def check_header(path: Path) -> None:
    """Raise NotARecording for a file that is no recording or newer than this version. Reads its first bytes only."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise NotARecording(f"{path}: {error.strerror}") from None
    if not header.startswith(_MAGIC[: len(header)]) or not header:
        raise NotARecording(f"{path} is not a recording of this console")
    if len(header) < _HEADER:
        raise NotARecording(f"{path} is cut off", damaged=True)
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise NotARecording(f"{path} is not a recording of this console")
    schema = int.from_bytes(header[60:64], "big")
    if schema > SCHEMA:
        raise NotARecording(f"{path} was written by a newer version (schema {schema}; this one reads up to {SCHEMA})")


@dataclass(frozen=True)
class _Snapshot:
    at: int
    url: str
    body: bytes


@dataclass(frozen=True)
class _Miss:
    at: int
    url: str
    reason: str


class Recorder:
    """Writes one recording from a thread of its own. Use as a context manager; raises NotARecording.

    An existing recording is continued, any other file refused. `trouble` says in words why recording stopped, and is
    None while it runs; nothing here ever raises or waits for the disk after the start. `clock` gives Unix seconds.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] | None = None) -> None:
        self.path = path
        self.trouble: str | None = None
        self._inbox: queue.Queue[_Snapshot | _Miss | None] = queue.Queue(_WAITING)
        self._clock = clock or _steady_clock()
        self._lock = _claim(path)
        try:
            self._file = _opened(path)
            self._writer = _Writer(self._file)
        except BaseException:
            os.close(self._lock)
            raise
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()

    def snapshot(self, url: str, body: bytes) -> None:
        """Keep the body of a snapshot that arrived now."""
        self._put(_Snapshot(self._now(), url, body))

    def missed(self, url: str, reason: str) -> None:
        """Keep that an attempt brought nothing."""
        self._put(_Miss(self._now(), url, reason))

    @property
    def written(self) -> int:
        """How many snapshots the file has taken for good."""
        return self._writer.written

    def close(self) -> None:
        """Write what is left and leave one plain file."""
        with suppress(queue.Full):
            # A disk that hangs must not keep a person from leaving.
            self._inbox.put(None, timeout=_LEAVING_S)
            self._thread.join(_LEAVING_S)
        if not self._thread.is_alive():
            os.close(self._lock)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _put(self, entry: _Snapshot | _Miss) -> None:
        if self.trouble is not None:
            return
        try:
            self._inbox.put_nowait(entry)
        except queue.Full:
            self.trouble = f"recording stopped: {self.path} takes no more"

    def _write(self) -> None:
        try:
            while self._batch():
                pass
            self._writer.finish()
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            self.trouble = f"recording stopped: {self.path}: {error}"
        finally:
            self._file.close()
            self._drain()

    def _batch(self) -> bool:
        """Write what arrives within half a second in one transaction; False at the end."""
        entries = [self._inbox.get()]
        until = time.monotonic() + BATCH_S
        while entries[-1] is not None and (left := until - time.monotonic()) > 0:
            try:
                entries.append(self._inbox.get(timeout=left))
            except queue.Empty:
                break
        self._writer.write([entry for entry in entries if entry is not None])
        return entries[-1] is not None

    def _drain(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()


class _Writer:
    """Writes the tables: sessions, the open block, failed polls. Runs on the writer's thread."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file
        self._last = _newest(file)
        self._last_snapshot = 0
        self._session = 0
        self._url: str | None = None
        self._encoder = Encoder()
        self._lines = 0
        self._missing: str | None = None
        self.written = 0

    def write(self, entries: list[_Snapshot | _Miss]) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            for entry in entries:
                # A clock that was set back must not put a snapshot before the one that it followed.
                at = self._last = max(entry.at, self._last + 1)
                if entry.url != self._url:
                    self._begin_session(at, entry.url)
                if isinstance(entry, _Snapshot):
                    self._add(at, entry.body)
                else:
                    self._miss(at, entry.reason)
        except BaseException:
            # A full disk ends the transaction by itself.
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")
        self.written += sum(isinstance(entry, _Snapshot) for entry in entries)

    def finish(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        close_block(self._file)
        self._file.execute("COMMIT")
        self._file.execute("PRAGMA incremental_vacuum").fetchall()
        # Readers of a finished recording need no files beside it; one that reads now keeps the log until it leaves.
        self._file.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._file.execute("PRAGMA journal_mode = DELETE")

    def _begin_session(self, at: int, url: str) -> None:
        self._end_block()
        cursor = self._file.execute("INSERT INTO session (began, url) VALUES (?, ?)", (at, url))
        self._session, self._url, self._missing = cursor.lastrowid or 0, url, None

    def _add(self, at: int, body: bytes) -> None:
        if self._lines and at - self._last_snapshot > GAP_S * 1e6:
            self._end_block()
        self._file.execute("INSERT INTO tail VALUES (?, ?, ?)", (at, self._session, self._encoder.line(body)))
        self._missing, self._last_snapshot = None, at
        self._lines += 1
        if self._lines == BLOCK_SNAPSHOTS:
            self._end_block()

    def _end_block(self) -> None:
        close_block(self._file)
        self._encoder.begin_block()
        self._lines = 0

    def _miss(self, at: int, reason: str) -> None:
        if reason == self._missing:
            self._file.execute(
                "UPDATE miss SET last = ?, tries = tries + 1 WHERE first = (SELECT max(first) FROM miss)", (at,)
            )
            return
        self._missing = reason
        self._file.execute("INSERT INTO miss VALUES (?, ?, ?, 1, ?)", (at, at, self._session, reason))


def close_block(file: sqlite3.Connection) -> None:
    """Make one block of the lines in the tail, within the caller's transaction."""
    rows = file.execute("SELECT at, session, line FROM tail ORDER BY at").fetchall()
    if not rows:
        return
    times = msgspec.msgpack.encode([at for at, _, _ in rows])
    data = pack([times, *(line for _, _, line in rows)], _LEVEL)
    file.execute("INSERT INTO block VALUES (?, ?, ?, ?, ?)", (rows[0][0], rows[-1][0], rows[0][1], len(rows), data))
    file.execute("DELETE FROM tail")


def unpacked_block(data: bytes) -> tuple[list[int], list[bytes]]:
    """The times and lines of a block, also of one in the first format, whose lines carry the times themselves."""
    lines = unpack(data)
    if first_format.is_line(lines[0]):
        return [first_format.time_of(line) for line in lines], lines
    return msgspec.msgpack.decode(lines[0], type=list[int]), lines[1:]


def _newest(file: sqlite3.Connection) -> int:
    """The last moment in the file. The lines that a killed writer left in the tail become a block."""
    file.execute("BEGIN IMMEDIATE")
    close_block(file)
    file.execute("COMMIT")
    found = file.execute(
        "SELECT max((SELECT coalesce(max(last), 0) FROM block), (SELECT coalesce(max(last), 0) FROM miss),"
        " (SELECT coalesce(max(began), 0) FROM session))"
    ).fetchone()
    return int(found[0])


def _claim(path: Path) -> int:
    """Lock the file for this writer; returns the handle to close at the end, after SQLite's own handle: closing any
    handle of a file drops the process's record locks on it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # One that is continued may be wider: it names clients.
        with suppress(PermissionError):
            os.fchmod(handle, 0o600)
    except OSError as error:
        raise NotARecording(f"cannot record to {path}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_size:
            check_header(path)
    except BlockingIOError:
        os.close(handle)
        raise NotARecording(f"{path} is being recorded by another console") from None
    except NotARecording as error:
        os.close(handle)
        raise NotARecording(f"{error}; nothing was written to it", damaged=error.damaged) from None
    return handle


def _opened(path: Path) -> sqlite3.Connection:
    """The file with its tables, ready to write."""
    try:
        # Made here, used by the writer's thread alone afterwards.
        file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            if file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                # Space that the tail needed can then be given back at the end; must come before the first table.
                file.execute("PRAGMA auto_vacuum = INCREMENTAL")
                file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                file.executescript(f"BEGIN; {TABLES} COMMIT;")
            file.execute(f"PRAGMA user_version = {SCHEMA}")
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
    except sqlite3.DatabaseError as error:
        raise NotARecording(f"cannot record to {path}: {error}", damaged=True) from None
    return file


def _steady_clock() -> Callable[[], float]:
    """Unix time at the start, then a clock that nobody sets; where the system has one, it counts sleep as well."""
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset = time.time() - time.clock_gettime(source)
    return lambda: offset + time.clock_gettime(source)
