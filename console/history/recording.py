"""Reads recordings: the state of the console at any moment, also while the file is still being written."""

from __future__ import annotations

import math
import sqlite3
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from console.history.codec import Decoder
from console.history.recorder import GAP_S, NotARecording, check_header, unpacked_block
from console.history.timeline import Gap
from engine.protocol import Health, decode_health

_MICRO = 1e6


@dataclass(frozen=True)
class RecordedState:
    """The newest snapshot at a moment, when it came (Unix seconds), and what failed since."""

    url: str
    at: float
    health: Health | None
    error: str | None = None


class Recording:
    """One recording, read only. Use as a context manager; opening and reading raise NotARecording.

    `begin` and `end` are the first and last moment in Unix seconds as `refresh` found them.
    """

    def __init__(self, path: Path) -> None:
        check_header(path)
        self.path = path
        self.begin = self.end = 0.0
        self._block = _Block()
        try:
            self._file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise NotARecording(f"{path}: {error}", damaged=True) from None
        try:
            self.refresh()
            self.state_at(self.begin)
            self.state_at(self.end)
        except BaseException:
            self._file.close()
            raise

    def refresh(self) -> None:
        """Look again how far the recording reaches."""
        with self._reading() as file:
            first, last = file.execute(
                "SELECT min(a), max(b) FROM (SELECT min(began) a, max(began) b FROM session"
                " UNION ALL SELECT min(first), max(last) FROM block UNION ALL SELECT min(at), max(at) FROM tail"
                " UNION ALL SELECT min(first), max(last) FROM miss)"
            ).fetchone()
        if first is None:
            raise NotARecording(f"{self.path} holds no snapshot yet")
        self.begin, self.end = first / _MICRO, last / _MICRO

    def state_at(self, at: float) -> RecordedState:
        """The state at `at`; before the recording, the state at its beginning."""
        moment = _micro(at)
        with self._reading() as file:
            session, began, url = file.execute(
                "SELECT id, began, url FROM session ORDER BY began <= ? DESC, abs(began - ?) LIMIT 1", (moment, moment)
            ).fetchone()
            self._enter(file, moment, session)
            miss = file.execute(
                "SELECT first, reason FROM miss WHERE session = ? AND first <= ? ORDER BY first DESC LIMIT 1",
                (session, moment),
            ).fetchone()
            came, health = self._block.snapshot(moment)
        error = miss[1] if miss is not None and miss[0] > came else None
        return RecordedState(url, (came or began) / _MICRO, health, error)

    def next_after(self, at: float) -> float | None:
        """When the first snapshot after `at` came; None where there is none."""
        moment = _micro(at)
        with self._reading() as file:
            self._enter(file, moment)
            inside = self._block.next_after(moment)
            if inside is None:
                inside = file.execute(
                    "SELECT min(a) FROM (SELECT min(first) a FROM block WHERE first > ?"
                    " UNION ALL SELECT min(at) FROM tail WHERE at > ?)",
                    (moment, moment),
                ).fetchone()[0]
        return None if inside is None else inside / _MICRO

    def between(self, begin: float, end: float) -> Iterator[RecordedState]:
        """The snapshots that came from `begin` to `end`, in order."""
        at = self.next_after(begin - 1 / _MICRO)
        while at is not None and at <= end:
            yield self.state_at(at)
            at = self.next_after(at)

    def seconds(self, begin: float, end: float) -> Iterator[RecordedState]:
        """The first snapshot of each second from `begin` to `end`."""
        at = self.next_after(begin - 1 / _MICRO)
        while at is not None and at <= end:
            yield self.state_at(at)
            at = self.next_after(math.floor(at) + 1 - 1 / _MICRO)

    def gaps(self) -> tuple[Gap, ...]:
        """Every stretch without snapshots, in order."""
        with self._reading() as file:
            held = file.execute(
                "SELECT first, last FROM block UNION ALL SELECT min(at), max(at) FROM tail HAVING count(*)"
            ).fetchall()
            misses = file.execute("SELECT first, last, reason FROM miss ORDER BY first").fetchall()
        found: list[Gap] = []
        until = self.begin
        for first, last, reason in sorted([*((*span, None) for span in held), *misses], key=lambda span: span[0]):
            begin, end = first / _MICRO, last / _MICRO
            if begin - until > GAP_S:
                found.append(Gap(until, begin, None))
            if reason is not None:
                found.append(Gap(begin, end, reason))
            until = max(until, end)
        return tuple(found)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One transaction, because a writer may move lines from the tail into a block meanwhile."""
        try:
            self._file.execute("BEGIN")
            try:
                yield self._file
            finally:
                self._file.execute("COMMIT")
        except (sqlite3.Error, zlib.error, msgspec.MsgspecError, ValueError, LookupError) as error:
            self._block = _Block()
            raise NotARecording(f"{self.path} is damaged: {error}", damaged=True) from error

    def _enter(self, file: sqlite3.Connection, moment: int, session: int | None = None) -> None:
        """Make `_block` the one with the newest snapshot up to `moment`, of that session where one is given."""
        ours = "(:session IS NULL OR session = :session)"
        given = {"session": session, "moment": moment}
        tail = file.execute(f"SELECT min(at) FROM tail WHERE {ours}", given).fetchone()[0]
        if tail is not None and tail <= moment:
            rows = file.execute(f"SELECT at, line FROM tail WHERE {ours} ORDER BY at", given).fetchall()
            self._block.load(tail, [at for at, _ in rows], [line for _, line in rows])
            return
        row = file.execute(
            f"SELECT first, snapshots FROM block WHERE first <= :moment AND {ours} ORDER BY first DESC LIMIT 1", given
        ).fetchone()
        if row is None:
            self._block.load(None, [], [])
        elif self._block.key != row[0] or self._block.size != row[1]:
            data = file.execute("SELECT data FROM block WHERE first = ?", row[:1]).fetchone()[0]
            self._block.load(row[0], *unpacked_block(data))


class _Block:
    """The block that was read last: its times and its decoder."""

    def __init__(self) -> None:
        self.key: int | None = None
        self._times: list[int] = []
        self._decoder = Decoder([])

    @property
    def size(self) -> int:
        return len(self._times)

    def load(self, key: int | None, times: list[int], lines: list[bytes]) -> None:
        """Take in the lines of the block that begins at `key`; the decoder of the same block goes on."""
        self._times = times
        if key is not None and key == self.key:
            self._decoder.lines = lines
        else:
            self.key, self._decoder = key, Decoder(lines)

    def snapshot(self, moment: int) -> tuple[int, Health | None]:
        """The newest one up to `moment` and when it came; (0, None) where there is none."""
        index = bisect_right(self._times, moment) - 1
        if index < 0:
            return 0, None
        return self._times[index], decode_health(self._decoder.body(index))

    def next_after(self, moment: int) -> int | None:
        """When the first snapshot after `moment` in this block came, if the one before it is here as well."""
        index = bisect_right(self._times, moment)
        return self._times[index] if 0 < index < len(self._times) else None


def _micro(at: float) -> int:
    return round(at * _MICRO)
