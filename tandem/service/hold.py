"""Holds the box: stops the engines, runs a command, and starts the engines again, whatever happened."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from engine.process.locks import Held, held, holder, process_words
from engine.process.private_files import make_private, read_private, write_private
from tandem import output
from tandem.client.register import Launch, Running, read_launch, running
from tandem.client.wire import Address, NoAnswer, Refused, health
from tandem.exits import CommandError, Exit
from tandem.service import unit
from tandem.service.claims import hold_lock
from tandem.service.launching import check_restartable, end_engine, environment_of, launch, working_in
from tandem.settings.paths import state_root

if TYPE_CHECKING:
    import psutil

NOTE_NAME = "hold.json"
TIMED_OUT_EXIT = 124
"""What `timeout` exits with too."""
CANNOT_RUN_EXIT, NOT_FOUND_EXIT = 126, 127
"""What a shell exits with for such a command."""
GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for a command that must end."""
POLL_S = 0.2


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """`hold.json` in the folder that all engines of a user share: what a hold stopped. It stays after a crash."""

    pid: int
    since: float
    until: float
    command: str
    state_dirs: list[str]
    units: list[str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A service that was running, and how it runs again: by its unit, or by its flags, folder and variables."""

    state_dir: Path
    unit: str | None
    launch: Launch | None
    environ: dict[str, str]


def hold_box(seconds: float, command: list[str], *, drain: bool, wait_s: float) -> int:
    """Stop every engine of this user, run the command for at most `seconds`, and start the engines again, each waited
    for up to `wait_s`. Returns the command's exit code, FAILURE in the place of 0 where an engine did not start again.

    Raises CommandError (exit 5) where the box is held, an engine could not be started again, or requests run and
    `drain` is off.
    """
    stopped: list[Stopped] = []
    with _signals_noted() as signals:
        try:
            with held(hold_lock()):
                code = _stop_and_run(seconds, command, drain=drain, signals=signals, stopped=stopped)
        except Held as why:
            raise CommandError(
                f"the box is held already, by {process_words(why.pid)}; `tandem status` tells until when", Exit.REFUSED
            ) from why
        finally:
            # The lock is free again here: it keeps every engine from starting, also those that a unit restarts.
            restored = [_restore(one, wait_s) for one in stopped]
            if stopped and all(restored):
                remove_note()
    return code if all(restored) else code or Exit.FAILURE


def _stop_and_run(
    seconds: float, command: list[str], *, drain: bool, signals: list[int], stopped: list[Stopped]
) -> int:
    """Returns the command's exit code; `stopped` are the services to start again, also where this raises."""
    engines = running()
    _check(engines, drain=drain)
    ways = [_how(engine) for engine in engines]
    until = time.time() + seconds
    shown = shlex.join(command)
    if not engines:
        output.note("no engine runs; there will be none to start again")
    else:
        write_note(
            Note(
                pid=os.getpid(),
                since=time.time(),
                until=until,
                command=shown,
                state_dirs=[str(one.state_dir) for one in ways if one.unit is None],
                units=[one.unit for one in ways if one.unit is not None],
            )
        )
    for engine, way in zip(engines, ways, strict=True):
        output.note(f"stopping {engine}")
        stopped.append(way)
        end_engine(engine)
    if signals:
        return 128 + signals[0]
    output.note(f"running {shown}, until {_clock(until)} at the latest")
    return _run(command, seconds, signals)


def _check(engines: list[Running], *, drain: bool) -> None:
    """Raises CommandError (exit 5) where an engine could not be started again, or is at work."""
    for engine in engines:
        if engine.supervisor is None and not (engine.record and engine.record.unit):
            raise CommandError(
                f"{engine} was started by hand with `tandem serve`, which nothing starts again; stop it yourself",
                Exit.REFUSED,
            )
        if not drain and (busy := _requests(engine)):
            words = "1 request runs or waits" if busy == 1 else f"{busy} requests run or wait"
            raise CommandError(f"{words} on {engine}; wait, or add --drain", Exit.REFUSED)


def _requests(engine: Running) -> int:
    if engine.record is None:
        return 0
    try:
        parallel = health(Address.of_engine(engine.record)).parallel
    except (NoAnswer, Refused):
        return 0
    return parallel.running + parallel.waiting


def _how(engine: Running) -> Stopped:
    by = engine.record.unit if engine.record else None
    how = None if by else read_launch(engine.state_dir)
    environ = environment_of(engine)
    if by is None:
        if how is None:
            raise CommandError(f"how {engine} was started is not known any more; `tandem stop` ends it", Exit.REFUSED)
        # Checked before the engine is stopped: it must be able to start again.
        check_restartable(how, environ)
    return Stopped(engine.state_dir, by, how, environ)


def _restore(one: Stopped, wait_s: float) -> bool:
    """Start a service again; False, and a line, where that fails."""
    try:
        if Running.find(one.state_dir) is not None:
            return True
        if one.unit is not None:
            unit.manage("start", one.unit)
        elif one.launch is not None:
            output.note(f"starting the engine of {one.state_dir} again")
            with working_in(one.launch.folder):
                launch(one.launch.to_flags(), wait_s=wait_s, environ=one.environ)
    except (CommandError, OSError) as why:
        output.error(f"the engine of {one.state_dir} did not start again: {why}")
        return False
    return True


def _run(command: list[str], seconds: float, signals: list[int]) -> int:
    """Run the command in this terminal; returns its exit code as a shell would say it."""
    try:
        child = subprocess.Popen(command)
    except OSError as why:
        output.error(f"{command[0]} cannot be run: {why.strerror}")
        return NOT_FOUND_EXIT if isinstance(why, FileNotFoundError) else CANNOT_RUN_EXIT
    deadline = time.monotonic() + seconds
    while True:
        try:
            code = child.wait(max(0.0, min(POLL_S, deadline - time.monotonic())))
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() >= deadline:
            output.warn(f"the time is up; ending {command[0]}")
            _end_tree(child)
            return TIMED_OUT_EXIT
        # The terminal sends Ctrl-C to the command too, which decides what it means. Signals that arrived while the
        # command was being started count.
        if ending := [number for number in signals if number != signal.SIGINT]:
            _end_tree(child)
            return 128 + ending[0]


def _end_tree(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the command and all that it started, SIGKILL to what is left."""
    import psutil

    family = _with_children([psutil.Process(child.pid)])
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        _, left = psutil.wait_procs(family, timeout=GRACE_S)
        # A process that ignored SIGTERM may have started others.
        family = _with_children(left)
    child.wait()


def _with_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    import psutil

    family = dict.fromkeys(processes)
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            family |= dict.fromkeys(one.children(recursive=True))
    return list(family)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Record SIGINT, SIGTERM and SIGHUP instead of ending: the stopped engines must be started again."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield noted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def note_path() -> Path:
    return state_root() / NOTE_NAME


def write_note(note: Note) -> None:
    make_private(note_path().parent)
    write_private(note_path(), msgspec.json.format(msgspec.json.encode(note)) + b"\n")


def remove_note() -> None:
    # A read-only disk refuses to remove even a file that does not exist.
    if note_path().exists():
        note_path().unlink(missing_ok=True)


def read_note() -> Note | None:
    try:
        return msgspec.json.decode(read_private(note_path()), type=Note)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _ended(note: Note) -> bool:
    """Whether the process of the hold that wrote the note has ended."""
    import psutil

    try:
        return bool(psutil.Process(note.pid).create_time() > note.since)
    except psutil.NoSuchProcess:
        return True


def _clock(moment: float) -> str:
    """A future time of day, with its date where it is more than a day away."""
    at = datetime.fromtimestamp(moment)
    return f"{at:%H:%M:%S}" if moment - time.time() < 86_400 else f"{at:%Y-%m-%d %H:%M:%S}"


def describe_hold() -> str | None:
    """A sentence about the hold in force, or about one that crashed and left services stopped; None without one."""
    note = read_note()
    if note is None:
        return None
    stopped = ", ".join([*note.state_dirs, *note.units])
    if not _ended(note):
        if holder(hold_lock()) is None:
            return f"a hold (process {note.pid}) is starting again what it had stopped ({stopped})"
        return f"the box is held by process {note.pid} until {_clock(note.until)} at the latest: {note.command}"
    return (
        f"a hold (process {note.pid}: {note.command}) ended without starting again what it had stopped ({stopped}); "
        "`tandem start` does"
    )


def restore_after_crash(wait_s: float) -> bool:
    """Start the services that a crashed hold left stopped. False where there are none."""
    note = read_note()
    if note is None or not _ended(note):
        return False
    output.note("starting what a hold had stopped and not started again")
    stopped = [
        Stopped(Path(folder), None, how, dict(os.environ))
        for folder in note.state_dirs
        if (how := read_launch(Path(folder))) is not None
    ]
    stopped += [Stopped(Path("/"), name, None, {}) for name in note.units]
    restored = [_restore(one, wait_s) for one in stopped]
    if not all(restored):
        raise CommandError("not all of it started again")
    remove_note()
    return bool(stopped)
