"""Starts an engine in the background under a supervisor of its own, and ends one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from engine.config import CLOSING_S
from engine.process.private_files import open_private
from engine.process.state_dir import RECORD_NAME, read_record
from engine.protocol import Status
from tandem import output
from tandem.client.register import Launch, Running, unrecorded_address
from tandem.client.wire import health
from tandem.exits import CommandError, Exit
from tandem.service.preflight import find_model, refuse_early
from tandem.service.rotation import LOG_NAME
from tandem.service.supervisor_report import State, read_report
from tandem.service.unit import check_no_unit_runs
from tandem.settings.engine_config import check_host, state_dir
from tandem.settings.flags import to_arguments
from tandem.settings.origins import Flags, resolve
from tandem.settings.table import ALIAS_PREFIXES, PREFIX, Settings

POLL_S = 0.1
TAIL_LINES = 20
OWN_LOG_NAME = "supervisor.log"
"""The supervisor's output until it can write to the engine's log."""


def launch(flags: Flags, *, wait_s: float, environ: Mapping[str, str] | None = None) -> None:
    """Start a supervisor with its engine in a session of their own, and wait until the engine is ready.

    Raises CommandError: with the engine's own exit code and the end of its log where it ends first, exit 4 where it is
    not ready in time (it goes on loading).
    """
    environ = os.environ if environ is None else environ
    resolved = resolve(flags, environ)
    settings = resolved.settings
    for text in resolved.notes:
        output.warn(text)
    refuse_early(resolved)
    folder = state_dir(settings)
    check_no_unit_runs(settings.port, folder)
    find_model(settings.model)
    with _own_log(folder) as own_log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tandem.service", *to_arguments(flags)],
            stdin=subprocess.DEVNULL,
            stdout=own_log,
            stderr=own_log,
            start_new_session=True,
            env=dict(environ),
        )
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if (code := child.poll()) is not None:
            known = Exit(code) if code in set(Exit) and code else Exit.FAILURE
            raise CommandError(f"the engine ended while it started (exit {code}):\n{_log_tail(folder)}", known)
        if (ready := _ready(folder, child.pid, environ)) is not None:
            output.note(f"ready at {ready}, watched by {child.pid}); log: {folder / LOG_NAME}")
            return
        time.sleep(POLL_S)
    raise CommandError(
        f"not ready within {wait_s:g} s; it goes on loading (`tandem status` tells, `tandem stop` ends it):\n"
        f"{_log_tail(folder)}",
        Exit.NOT_READY,
    )


def _ready(folder: Path, supervisor: int, environ: Mapping[str, str]) -> str | None:
    """Address and process of the engine once its supervisor reports it ready, else None. The engine itself is asked
    where the state directory could not take the report and the record."""
    report, record = read_report(folder), read_record(folder)
    reported = report is not None and report.pid == supervisor
    if reported and report is not None and report.state is not State.WATCHING:
        return None
    engine = Running(folder, record, supervisor)
    if record is not None:
        return f"{record.url} (process {record.pid}" if reported else None
    address = unrecorded_address(engine, environ)
    if address is None or health(address).status is not Status.OK:
        return None
    output.warn(f"its record {folder / RECORD_NAME} could not be written; `tandem status` says why")
    return f"{address.url} (process {engine.pid}"


def _own_log(folder: Path) -> IO[bytes]:
    """The file of the supervisor's output; the null device where the state directory cannot be written."""
    try:
        return os.fdopen(open_private(folder / OWN_LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
    except OSError:
        return open(os.devnull, "wb")


def end_engine(engine: Running, timeout_s: float | None = None) -> None:
    """Ask an engine to drain and end, with its supervisor where it has one, and kill them after `timeout_s`."""
    supervised = engine.supervisor is not None
    if timeout_s is None:
        # A supervisor kills its engine itself, after a drain of its own settings.
        timeout_s = _drain_timeout(environment_of(engine)) + CLOSING_S + (5.0 if supervised else 0.0)
    pid = engine.supervisor if supervised else engine.pid
    if pid == 0:
        raise CommandError(
            f"which process holds {engine.state_dir} is not known: it has just begun, or runs in another container; "
            "try again, or end it there",
            Exit.NOT_READY,
        )
    if pid is None or not _signal(pid, signal.SIGTERM):
        return
    if not _wait_for(lambda: Running.find(engine.state_dir) is None, timeout_s):
        left = Running.find(engine.state_dir)
        for one in (left.pid, left.supervisor) if left else ():
            if one and Running.find(engine.state_dir) is not None:
                output.warn(f"process {one} did not end within {timeout_s:g} s; killing it")
                _signal(one, signal.SIGKILL)
                _wait_for(lambda: Running.find(engine.state_dir) is None, 5.0)
        if Running.find(engine.state_dir) is not None:
            raise CommandError(f"process {pid} cannot be killed")
    report = read_report(engine.state_dir) if supervised else None
    if report is not None and report.reason and report.pid == pid:
        output.warn(f"it did not end by itself: {report.reason}")


def _drain_timeout(environ: Mapping[str, str]) -> float:
    """The drain time of the settings. The default where they no longer parse: an engine must be able to end."""
    try:
        return resolve(environ=environ).settings.drain_timeout
    except CommandError as why:
        output.warn(why.message)
        return Settings().drain_timeout


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Change to the folder that an engine was started in, since its flags may hold relative paths. Raises CommandError
    (exit 5)."""
    try:
        before = Path.cwd()
    except FileNotFoundError:
        before = Path("/")
    try:
        os.chdir(folder)
    except OSError as why:
        raise CommandError(
            f"the engine was started in {folder}, which cannot be entered ({why.strerror}); "
            "`tandem start` with the flags it needs starts it from here",
            Exit.REFUSED,
        ) from why
    try:
        yield
    finally:
        os.chdir(before)


def check_restartable(how: Launch, environ: Mapping[str, str]) -> None:
    """Raises CommandError where an engine could not be started again: its settings no longer parse, or its folder or
    model is gone."""
    with working_in(how.folder):
        resolved = resolve(how.to_flags(), environ)
        check_host(resolved)
        find_model(resolved.settings.model)


def environment_of(engine: Running) -> dict[str, str]:
    """The environment of this process, with the settings of the engine's environment that it does not set itself."""
    kept = {}
    with suppress(OSError):
        raw = Path(f"/proc/{engine.supervisor or engine.pid}/environ").read_bytes()
        pairs = [entry.decode("utf-8", "surrogateescape").partition("=") for entry in raw.split(b"\0")]
        kept = {name: value for name, _, value in pairs if name.startswith((PREFIX, *ALIAS_PREFIXES))}
    return kept | os.environ


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False where the process has gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_for(done: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _log_tail(folder: Path) -> str:
    """The last lines of the supervisor's output, else of the engine's log."""
    for name in (OWN_LOG_NAME, LOG_NAME):
        with suppress(FileNotFoundError), (folder / name).open(encoding="utf-8", errors="replace") as log:
            if words := "".join(deque(log, maxlen=TAIL_LINES)).rstrip():
                return words
    # A full disk explains an empty log.
    return f"(the log is empty; its disk has {shutil.disk_usage(folder).free >> 20} MiB free)"
