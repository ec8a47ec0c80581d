"""The state directory of a service: its lock, and the record by which other commands find the running engine."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

log = logging.getLogger("tandem.service")

PRIVATE = 0o700
LOCK_NAME = "engine.lock"
RECORD_NAME = "engine.json"


class Held(Exception):
    """Another process holds a lock file."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is held by {f'process {pid}' if pid is not None else 'another process'}")
        self.pid = pid


class StateDirLocked(Exception):
    """Another engine holds the state directory."""

    def __init__(self, state_dir: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"the state directory {state_dir} is held by {holder}; stop it or choose another --state-dir")
        self.state_dir = state_dir
        self.pid = pid


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `engine.json` says of the running service. `started` is Unix time in seconds, `unit` the systemd unit that
    runs it, `socket` the path of the owner's socket, None where there is none."""

    pid: int
    url: str
    started: float
    version: str
    unit: str | None = None
    socket: str | None = None


@contextmanager
def lock_state_dir(state_dir: Path) -> Iterator[None]:
    """Hold the directory for this process; made if absent. Raises StateDirLocked where another process holds it.

    The lock is the kernel's (flock), so it ends with the process however that ends. The file keeps the holder's pid.
    """
    make_private(state_dir)
    try:
        with held(state_dir / LOCK_NAME):
            yield
    except Held as why:
        raise StateDirLocked(state_dir, why.pid) from None


def make_private(state_dir: Path) -> None:
    """Make the directory where it is absent, with mode 700; narrow a wider one, and say so in the log. One of another
    user is left as it is: that user can read and replace what is in it whatever its mode."""
    state_dir.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        state_dir.mkdir(mode=PRIVATE)
    found = state_dir.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return
    if found.st_uid != os.geteuid():
        log.warning("the state directory %s belongs to user %d and has mode %o", state_dir, found.st_uid, mode)
        return
    state_dir.chmod(PRIVATE)
    log.warning("the state directory %s had mode %o and let other users in; it has 700 now", state_dir, mode)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` for this process; made if absent, with its folder. Raises Held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            raise Held(path, _pid_in(descriptor))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """The live process that holds the lock file at `path`; None where none does. 0 where one does and has not said
    which."""
    if not is_held(path):
        return None
    text = path.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdigit() else 0


def _try_lock(descriptor: int) -> bool:
    """Take the lock; a second try, because `is_locked` in another process holds it for an instant."""
    for last_try in (False, True):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not last_try:
                time.sleep(0.05)
    return False


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


def is_locked(state_dir: Path) -> bool:
    """Whether a live process holds the directory."""
    return is_held(state_dir / LOCK_NAME)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock file at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_record(state_dir: Path, record: ServiceRecord) -> None:
    """Write `engine.json` whole or not at all."""
    draft = state_dir / (RECORD_NAME + ".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    draft.replace(state_dir / RECORD_NAME)


def read_record(state_dir: Path) -> ServiceRecord | None:
    """The record of the running service; None where no live process holds the directory, or it wrote none yet."""
    if not is_locked(state_dir):
        return None
    try:
        return msgspec.json.decode((state_dir / RECORD_NAME).read_bytes(), type=ServiceRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_record(state_dir: Path) -> None:
    (state_dir / RECORD_NAME).unlink(missing_ok=True)
