"""The background engine's log: written by its supervisor with a bounded size, read and followed by `tandem logs`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self, TextIO

from engine.process.private_files import FOLDER_MODE, narrow, open_private

LOG_NAME = "engine.log"
LIMIT_BYTES = 10 << 20
KEPT = 3
"""Full files kept beside the one being written, `engine.log.1` the newest."""

FOLLOW_S = 0.1


class RotatingLog:
    """Appends whole lines to a file that is put aside when it is full. Any thread may write.

    A disk that takes no more costs lines, never the writer.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._limit = limit_bytes
        self._kept = kept
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._size = 0
        self.last_line = ""
        """The last line that was not empty."""

    def write(self, lines: bytes) -> None:
        """Write `lines`, which end in a newline."""
        words = lines.strip().rpartition(b"\n")[2].decode("utf-8", "replace")
        with self._lock:
            self.last_line = words or self.last_line
            with contextlib.suppress(OSError):
                if self._file is not None and _inode(self._path) != os.fstat(self._file.fileno()).st_ino:
                    # Someone moved it away or removed it.
                    self._close()
                file = self._file or self._open()
                if self._size and self._size + len(lines) > self._limit:
                    self._close()
                    self._put_aside()
                    file = self._open()
                file.write(lines)
                self._size += len(lines)

    def rotate(self) -> None:
        """Begin a new file, if the present one has anything in it."""
        with self._lock, contextlib.suppress(OSError):
            self._close()
            # Files of an earlier version may be readable by others.
            for number in range(self._kept + 1):
                with contextlib.suppress(FileNotFoundError):
                    narrow(numbered(self._path, number))
            if self._path.exists() and self._path.stat().st_size:
                self._put_aside()

    def close(self) -> None:
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        self._path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = open_private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._size = os.fstat(descriptor).st_size
        return self._file

    def _put_aside(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                numbered(self._path, number).replace(numbered(self._path, number + 1))
        self._path.replace(numbered(self._path, 1))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def numbered(path: Path, number: int) -> Path:
    """The file put aside `number` rotations ago; `path` itself for 0."""
    return path.with_name(f"{path.name}.{number}") if number else path


def pump(source: IO[bytes], log: RotatingLog) -> None:
    """Copy `source` to `log` in whole lines until it ends. A line longer than 64 KiB is cut."""
    pending = b""
    while chunk := os.read(source.fileno(), 65536):
        pending += chunk
        whole, end, pending = pending.rpartition(b"\n")
        if end:
            log.write(whole + end)
        if len(pending) > 65536:
            log.write(pending + b"\n")
            pending = b""
    if pending:
        log.write(pending + b"\n")
    source.close()


def read_back(path: Path, count: int) -> tuple[list[str], TextIO]:
    """The last `count` lines of a log, from the files put aside too where the newest does not hold as many; and the
    newest file, open where they end. Raises FileNotFoundError where there is no log."""
    newest = _reading(path)
    lines = deque(newest, maxlen=count)
    number = 1
    while len(lines) < count and numbered(path, number).exists():
        with _reading(numbered(path, number)) as older:
            lines.extendleft(reversed(deque(older, maxlen=count - len(lines))))
        number += 1
    return list(lines), newest


def follow(path: Path, file: TextIO, *, ended: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield every line written to the log at `path` from the position of `file`, its newest file, through rotations and
    restarts, until `ended`. Closes what it opens."""
    pending = ""
    try:
        while True:
            if part := file.readline():
                pending += part
                if pending.endswith("\n"):
                    yield pending
                    pending = ""
            elif _inode(path) not in (None, os.fstat(file.fileno()).st_ino):
                # What was written between the last look and the rotation is still in the old file.
                rest = pending + file.read()
                yield from rest.splitlines(keepends=True)
                file.close()
                file, pending = _reading(path), ""
            elif ended():
                return
            else:
                time.sleep(FOLLOW_S)
    finally:
        file.close()


def _reading(path: Path) -> TextIO:
    return os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8", errors="replace")


def _inode(path: Path) -> int | None:
    """The inode of `path`; None where there is no file."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
