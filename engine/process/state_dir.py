"""The state directory of a service: its lock, and the record by which other commands find the running engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from engine.process.locks import Held, held, is_alive, is_held, process_words
from engine.process.private_files import make_private, read_private, refuse_links
from engine.process.state_files import try_write

LOCK_NAME = "engine.lock"
RECORD_NAME = "engine.json"
OWN_NAMES = ("engine.", "supervisor.", "launch.json", "ledger.sqlite", "residency.jsonl")
"""How the names of our files begin. What else lies in the directory is not ours to judge."""


class StateDirLocked(Exception):
    """Another engine holds the state directory."""

    def __init__(self, state_dir: Path, pid: int | None) -> None:
        super().__init__(
            f"the state directory {state_dir} is held by {process_words(pid)}; stop it or choose another --state-dir"
        )
        self.state_dir = state_dir
        self.pid = pid


class StateDirUnusable(Exception):
    """The state directory cannot be used; the message says why."""

    def __init__(self, state_dir: Path, why: OSError) -> None:
        super().__init__(f"the state directory {state_dir} cannot be used: {why.strerror or why}")


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `engine.json` says of the running service. `started` is Unix time in seconds, `unit` the systemd unit that
    runs it, `socket` the path of the owner's socket, None where there is none."""

    pid: int
    url: str
    started: float
    version: str
    unit: str | None = None
    socket: str | None = None


def prepare(state_dir: Path) -> None:
    """Have the directory there, private, without a link in the place of a file of ours. Raises StateDirUnusable."""
    try:
        make_private(state_dir)
        refuse_links(state_dir, OWN_NAMES)
    except OSError as why:
        raise StateDirUnusable(state_dir, why) from why


@contextmanager
def lock_state_dir(state_dir: Path) -> Iterator[None]:
    """Hold the directory for this process; made if absent. Raises StateDirUnusable, and StateDirLocked where another
    process holds it.

    The lock is the kernel's (flock), so it ends with the process however that ends. The file keeps the holder's pid.
    """
    prepare(state_dir)
    with ExitStack() as stack:
        try:
            stack.enter_context(held(state_dir / LOCK_NAME))
            # An engine that was killed left its own, and must not be taken for this one.
            remove_record(state_dir)
        except Held as why:
            raise StateDirLocked(state_dir, why.pid) from None
        except OSError as why:
            raise StateDirUnusable(state_dir, why) from why
        yield


def is_locked(state_dir: Path) -> bool:
    """Whether a live process holds the directory."""
    return is_held(state_dir / LOCK_NAME)


def write_record(state_dir: Path, record: ServiceRecord) -> str | None:
    """Write `engine.json`. A sentence where it could not be written: the service does without it, and other commands
    find it by its socket or its port."""
    return try_write(state_dir / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def read_record(state_dir: Path) -> ServiceRecord | None:
    """The record of the running service; None where no live process holds the directory, or it wrote none yet, or
    could not: then a record of an earlier process may be all there is."""
    if not is_locked(state_dir):
        return None
    try:
        record = msgspec.json.decode(read_private(state_dir / RECORD_NAME), type=ServiceRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return record if is_alive(record.pid) else None


def remove_record(state_dir: Path) -> None:
    """Remove `engine.json`. A directory that has become read-only keeps it, naming a process that is no more."""
    with suppress(OSError):
        (state_dir / RECORD_NAME).unlink(missing_ok=True)
