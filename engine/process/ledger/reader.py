"""Reading the ledger: pages, and one row. Opens the file read-only for each question, also with no engine running."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from engine.process.ledger.store import BUSY_S, COLUMNS, FIELDS, LedgerUnusable, check_schema, said_of
from engine.process.private_files import refuse_links
from engine.protocol import Finish, LedgerRow, RequestsPage

PAGE_LIMIT = 500
SEQ = "#"
"""Begins the name of a row whose id is not its own."""

_PLACE = re.compile(f"{SEQ}([0-9]{{1,18}})")
"""A page's `next` of that kind, as far as SQLite counts."""

STEPS = 10_000
"""SQLite's own steps between two looks at the clock."""


class UnknownRow(Exception):
    """A page was asked for that begins after a row which is not there."""


class TookTooLong(Exception):
    """A question was given up at its time limit."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which rows: `q` is found in id, client, model or reason (ASCII letters in either case), `client` and `finish` are
    equal; None is any. A page has `limit` rows, older than the one that `before` names: an id, or a page's `next`."""

    limit: int = 50
    before: str | None = None
    q: str | None = None
    client: str | None = None
    finish: Finish | None = None


class LedgerReader:
    """Reads one ledger's file. Any thread; nothing is kept open between questions. Raises LedgerUnusable where there is
    a file that cannot be read, TookTooLong after `limit_s`; where there is none, it is empty."""

    def __init__(self, path: Path, *, limit_s: float = 5.0) -> None:
        self._path = path
        self._limit_s = limit_s

    def page(self, search: Search) -> RequestsPage:
        """Raises UnknownRow where `search.before` is not there."""
        where, values = _conditions(search)
        with self.opened() as connection:
            if connection is None:
                return RequestsPage(rows=[], next=None, total=0)
            total = connection.execute(f"SELECT count(*) FROM requests WHERE {where}", values).fetchone()[0]
            newest = "" if search.before is None else " AND seq < :seq"
            if search.before is not None:
                values["seq"] = self._seq_of(connection, search.before)
            found = connection.execute(
                f"SELECT seq, {COLUMNS} FROM requests WHERE {where}{newest} ORDER BY seq DESC LIMIT :limit",
                values | {"limit": search.limit + 1},
            ).fetchall()
            rows = [_row(seq, values) for seq, *values in found[: search.limit]]
            last = None
            if len(found) > search.limit:
                # Who embeds an engine may use an id twice: then it names the newer row.
                seq, last = found[search.limit - 1][0], rows[-1].id
                last = last if self._seq_of(connection, last) == seq else f"{SEQ}{seq}"
        return RequestsPage(rows=rows, next=last, total=total)

    def find(self, request_id: str) -> LedgerRow | None:
        """The newest row with that id."""
        with self.opened() as connection:
            if connection is None:
                return None
            found = connection.execute(
                f"SELECT seq, {COLUMNS} FROM requests WHERE id = ? ORDER BY seq DESC LIMIT 1", (request_id,)
            ).fetchone()
        return None if found is None else _row(found[0], found[1:])

    def _seq_of(self, connection: sqlite3.Connection, request_id: str) -> int:
        if placed := _PLACE.fullmatch(request_id):
            return int(placed[1])
        (seq,) = connection.execute("SELECT max(seq) FROM requests WHERE id = ?", (request_id,)).fetchone()
        if seq is None:
            raise UnknownRow(request_id)
        return int(seq)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection | None]:
        """The file, open for reading; None where there is none or nothing was written yet."""
        with said_of(self._path):
            there = self._path.exists()
            if there:
                refuse_links(self._path.parent, (self._path.name,))
        if not there:
            yield None
            return
        deadline = time.monotonic() + self._limit_s
        late = False

        def check_time() -> int:
            nonlocal late
            late = time.monotonic() > deadline
            return int(late)

        with said_of(self._path), closing(self._connect()) as connection:
            connection.set_progress_handler(check_time, STEPS)
            try:
                yield connection if check_schema(connection, self._path) else None
            except sqlite3.OperationalError as error:
                if not late:
                    raise
                raise TookTooLong(f"the ledger was searched for {self._limit_s:g} s without an end") from error

    def _connect(self) -> sqlite3.Connection:
        """In a folder that cannot be written, a ledger that was closed well can still be read as it lies."""
        uri = f"file:{quote(str(self._path.absolute()))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            connection.close()
            if not isinstance(error, sqlite3.OperationalError):
                raise
            if self._path.with_name(self._path.name + "-wal").exists():
                raise
            connection = sqlite3.connect(f"{uri}&immutable=1", uri=True)
        return connection


def _conditions(search: Search) -> tuple[str, dict[str, object]]:
    parts, values = ["1"], dict[str, object]()
    if search.q is not None:
        escaped = search.q.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values |= {"q": search.q, "like": f"%{escaped}%"}
        # LIKE is the fast way, but looks no further than a NUL, which a client may send in a name.
        within = "{0} LIKE :like ESCAPE '\\' OR instr({0}, char(0)) AND instr(lower({0}), lower(:q))"
        if "\0" in search.q:
            within = "instr(lower({0}), lower(:q))"
        parts.append(f"({' OR '.join(within.format(name) for name in ('id', 'client', 'model', 'reason'))})")
    if search.client is not None:
        values["client"] = search.client
        parts.append("client = :client")
    if search.finish is not None:
        values["finish"] = str(search.finish)
        parts.append("finish = :finish")
    return " AND ".join(parts), values


def misfit(seq: int, problem: str) -> LedgerUnusable:
    """The error for a row that no engine wrote so: someone edited the file."""
    return LedgerUnusable(
        f"row {seq} of the ledger does not fit: {problem}; correct it, or delete it with "
        f"DELETE FROM requests WHERE seq = {seq}"
    )


def _row(seq: int, values: Sequence[object]) -> LedgerRow:
    try:
        return msgspec.convert(dict(zip(FIELDS, values, strict=True)), LedgerRow)
    except msgspec.ValidationError as error:
        raise misfit(seq, str(error)) from error
