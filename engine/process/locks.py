"""Lock files: one process holds one, the kernel lets go of it with that process, and the file says which it is."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.process.private_files import FOLDER_MODE, open_private
from engine.process.state_files import write_over

UNKNOWN = 0
"""In place of the holder's pid where it is not known."""


def process_words(pid: int | None) -> str:
    """A holder in words. Never the asking process by its number: it would be told to stop itself."""
    if pid == os.getpid():
        return "this process itself"
    return f"process {pid}" if pid else "another process"


class Held(Exception):
    """A process holds a lock file. `pid` is None where it is not known which."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is held by {process_words(pid)}")
        self.pid = pid


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` for this process; made if absent, with its folder. Raises Held.

    The lock holds also where a full disk or a read-only directory does not take the pid.
    """
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        if not _try_lock(descriptor):
            raise Held(path, _pid_of_holder(descriptor))
        with suppress(OSError):
            write_over(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """The live process that holds the lock file at `path`; None where none does, UNKNOWN where one does and it cannot
    be told which: it has not said so yet, or lives in another namespace of processes."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except OSError as why:
        # What is no file of ours nobody of ours holds.
        if why.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL):
            return None
        raise
    try:
        return (_pid_of_holder(descriptor) or UNKNOWN) if _is_locked(descriptor) else None
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock file at `path`."""
    return holder(path) is not None


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _open(path: Path) -> int:
    try:
        return open_private(path, os.O_RDWR | os.O_CREAT)
    except OSError as why:
        # A lock needs no more than a file that is there.
        if why.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) or not path.exists():
            raise
        return open_private(path, os.O_RDONLY)


def _try_lock(descriptor: int) -> bool:
    """Take the lock; a second try, because `is_held` in another process holds it for an instant."""
    for last_try in (False, True):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not last_try:
                time.sleep(0.05)
    return False


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _pid_of_holder(descriptor: int) -> int | None:
    """The process that the file names, if it has the file open, else the one that the kernel names. Another may bear
    the file's number by now: the holder that wrote it may have died, the new one not have written yet or not been able
    to, or a container may have written a number of its own."""
    text = os.pread(descriptor, 32, 0).split(b"\n")[0].strip()
    if text.isdigit() and _has_open(int(text), descriptor):
        return int(text)
    return _locked_by(os.fstat(descriptor))


def _locked_by(file: os.stat_result) -> int | None:
    """The process with a write lock on a file, by /proc/locks (proc_locks(5)); None where it does not say."""
    there = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[3] == "WRITE" and words[5] == there and int(words[4]) > 0:
                return int(words[4])
    return None


def _has_open(pid: int, descriptor: int) -> bool:
    """Whether a process has the file open, by a descriptor other than this one."""
    asked = os.fstat(descriptor)
    own = pid == os.getpid()
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        # Another user's; what is in the file is all that there is to know.
        return not own
    except OSError:
        return False
    for number in numbers:
        if own and number == str(descriptor):
            continue
        try:
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), asked):
                return True
        except OSError:
            continue
    return False
