"""The ledger's file as its one writer has it: schema, appending, and what is kept how long.

WAL with `synchronous=NORMAL`: what was committed survives the death of the process, and readers never wait for the
writer nor it for them. The file has mode 600, because it names clients.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine.process.private_files import FOLDER_MODE, narrow, open_private, refuse_links
from engine.protocol import LedgerRow

FILE_NAME = "ledger.sqlite"
SCHEMA = 1
"""Grows with every change that an older program could not read."""

APPLICATION_ID = 0x54414E44
"""Marks the file as a ledger: "TAND"."""

BUSY_S = 5.0
"""How long another process (a backup, a shell) may hold the file before a write is given up."""

FIELDS = tuple(field.name for field in msgspec.structs.fields(LedgerRow))
COLUMNS = ", ".join(FIELDS)

_CREATE = """
CREATE TABLE requests (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL, client TEXT NOT NULL, model TEXT NOT NULL, slot INTEGER,
  arrived_at REAL NOT NULL, finished_at REAL NOT NULL,
  prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, cache_source TEXT NOT NULL,
  completion_tokens INTEGER NOT NULL, max_tokens INTEGER, finish TEXT NOT NULL, reason TEXT,
  queue_s REAL, ttft_s REAL, prefill_s REAL, decode_s REAL, total_s REAL NOT NULL, tok_s REAL, worst_gap_s REAL,
  route TEXT
);
CREATE INDEX requests_by_id ON requests (id);
CREATE INDEX requests_by_end ON requests (finished_at);
"""
_CREATE_RETENTION = "CREATE TABLE IF NOT EXISTS retention (id INTEGER PRIMARY KEY, believed REAL NOT NULL)"
"""One row: up to when the clock was believed (`retention.py`). Programs that do not know it need not."""

_INSERT = f"INSERT INTO requests ({COLUMNS}) VALUES ({', '.join('?' * len(FIELDS))})"


class LedgerUnusable(Exception):
    """The ledger's file cannot be used; the message says which, why, and what helps."""


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise into LedgerUnusable."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise LedgerUnusable(f"{path} cannot be used: {error}") from error
    except sqlite3.Error as error:
        raise LedgerUnusable(f"{path} is damaged ({error}); move it away to begin a new one") from error
    except OSError as error:
        raise LedgerUnusable(f"{path} cannot be used: {error.strerror or error}") from error


def check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a ledger of this schema; False where it is empty. Raises LedgerUnusable for others."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and schema == 0 and tables == 0:
        return False
    if application != APPLICATION_ID:
        raise LedgerUnusable(f"{path} is a database, but not a ledger; move it away to begin one")
    if schema > SCHEMA:
        raise LedgerUnusable(
            f"{path} was written by a newer version (its schema is {schema}, this one knows {SCHEMA}); update, or move "
            "it away to begin a new one"
        )
    return True


def _inodes(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.with_name(f"{path.name}-wal").stat().st_ino


class LedgerStore:
    """The open file of the one writer. Raises LedgerUnusable wherever the file cannot be used. One thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with said_of(path):
            path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            # SQLite follows links, and gives a new log the mode of the file.
            refuse_links(path.parent, (path.name,))
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
            for left in path.parent.glob(f"{path.name}-*"):
                narrow(left)
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                if not check_schema(self._connection, path):
                    self._create()
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute(_CREATE_RETENTION)
                self._connection.execute("PRAGMA synchronous = NORMAL")
                # Opens the log beside the file, which from here on stays while this connection does.
                self._connection.execute("SELECT 1 FROM requests LIMIT 1").fetchone()
                self._inodes = _inodes(path)
            except BaseException:
                self._connection.close()
                raise

    def _create(self) -> None:
        self._connection.executescript(
            f"BEGIN IMMEDIATE; {_CREATE} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA}; "
            "COMMIT;"
        )

    def in_place(self) -> bool:
        """Whether the path still leads to the open file, and to its log: what was moved away or deleted would be
        written unseen."""
        try:
            return _inodes(self._path) == self._inodes
        except OSError:
            return False

    def append(self, rows: Sequence[LedgerRow]) -> None:
        """Write the rows, all or none, in one transaction."""
        values = [tuple(getattr(row, name) for name in FIELDS) for row in rows]
        with said_of(self._path), self._transaction():
            self._connection.executemany(_INSERT, values)

    def believed(self) -> float | None:
        """The Unix time up to which rows had aged when the ledger was last pruned, else the last row's end; None for a
        new file."""
        with said_of(self._path):
            kept = self._connection.execute("SELECT believed FROM retention").fetchone()
            last = self._connection.execute("SELECT finished_at FROM requests ORDER BY seq DESC LIMIT 1").fetchone()
        found = kept or last
        return None if found is None else float(found[0])

    def prune(self, *, before: float, rows: int, believed: float) -> int:
        """Delete rows that ended before `before` (Unix seconds) and all but the newest `rows`, and keep `believed` for
        the next start; how many rows went."""
        with said_of(self._path), self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO retention VALUES (1, ?)", (believed,))
            gone = self._connection.execute("DELETE FROM requests WHERE finished_at < ?", (before,)).rowcount
            gone += self._connection.execute(
                "DELETE FROM requests WHERE seq <= (SELECT seq FROM requests ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (rows,),
            ).rowcount
        return gone

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk has rolled back by itself already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()
