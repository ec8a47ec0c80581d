"""`tandem start / stop / restart / status / logs`: the engine as a background service of this user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from engine.protocol import Status
from engine.state_dir import LOCK_NAME, is_locked, read_record
from tandem import output
from tandem.configure import state_dir
from tandem.exits import CommandError, Exit
from tandem.flags import to_arguments, with_engine_flags
from tandem.origins import Flags, resolve
from tandem.paths import default_state_dir
from tandem.register import LOG_NAME, Running, meant, read_launch, running
from tandem.serve import find_model, refuse_early
from tandem.status import describe
from tandem.wire import Address, Refused, Unreachable, get, health

app = typer.Typer(add_completion=False, rich_markup_mode=None)

POLL_S = 0.1
TAIL_LINES = 20

StateDirOption = Annotated[
    Path | None, typer.Option("--state-dir", metavar="FOLDER", help="The engine's state directory, where several run.")
]
WaitOption = Annotated[float, typer.Option("--wait", metavar="S", min=0, help="How long to wait until it is ready.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", min=0, help="How long to wait before it is killed. [drain_timeout + 15]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@with_engine_flags()
def start(
    flags: Flags,
    wait: WaitOption = 180.0,
    another: Annotated[bool, typer.Option("--another", help="Start beside an engine that already runs.")] = False,
) -> None:
    """Start the engine in the background and wait until it is ready."""
    if not another and (others := running()):
        shown = ", ".join(f"{o.record.url} (process {o.record.pid})" if o.record else str(o.state_dir) for o in others)
        raise CommandError(
            f"an engine of yours already runs: {shown}; stop it, or add --another with a --port and --state-dir",
            Exit.REFUSED,
        )
    launch(flags, wait_s=wait)


@app.command()
def stop(state_dir: StateDirOption = None, timeout: TimeoutOption = None) -> None:
    """Let running requests end, then stop the engine; kill it when that takes too long."""
    end(meant(state_dir), timeout)
    output.note("stopped")


@app.command()
def restart(state_dir: StateDirOption = None, timeout: TimeoutOption = None, wait: WaitOption = 180.0) -> None:
    """Stop the engine and start it again with the flags it was started with."""
    folder = state_dir.absolute() if state_dir else None
    try:
        engine = meant(folder)
    except CommandError as why:
        if why.code != Exit.NOT_RUNNING:
            raise
        folder = folder or default_state_dir()
    else:
        folder = engine.state_dir
        end(engine, timeout)
    before = read_launch(folder)
    if before is None:
        raise CommandError(f"no engine was started with the state directory {folder}", Exit.NOT_RUNNING)
    os.chdir(before.folder)
    launch(before.to_flags(), wait_s=wait)


@app.command()
def status(
    state_dir: StateDirOption = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The engine's address.")] = None,
    json: JsonOption = False,
) -> None:
    """Say what the running engine does. Exit 3 where none runs."""
    address = Address.of(url) if url else _address(meant(state_dir))
    if json:
        output.emit(get(address, "/health")[1].decode())
    else:
        output.emit(describe(health(address), address.url))


@app.command()
def logs(
    state_dir: StateDirOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines back.")] = 100,
) -> None:
    """Show the background engine's log. Exit 3 where there is none."""
    found = [engine.state_dir for engine in running()]
    folder = state_dir or (found[0] if len(found) == 1 else default_state_dir())
    path = folder / LOG_NAME
    if not path.exists():
        raise CommandError(f"there is no log at {path}: only `tandem start` writes one", Exit.NOT_RUNNING)
    with path.open(encoding="utf-8", errors="replace") as log:
        for line in deque(log, maxlen=lines):
            output.emit(line, end="")
        while follow:
            if line := log.readline():
                output.emit(line, end="")
            else:
                time.sleep(POLL_S)


def launch(flags: Flags, *, wait_s: float) -> None:
    """Start `tandem serve` in a session of its own and wait until it is ready.

    Raises CommandError: with the engine's own exit code and the end of its log where it ends first, exit 4 where it is
    not ready in time (it goes on loading).
    """
    resolved = resolve(flags)
    settings = resolved.settings
    for text in resolved.notes:
        output.warn(text)
    refuse_early(resolved)
    find_model(settings.model)
    folder = state_dir(settings)
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / LOG_NAME
    if log_path.exists():
        log_path.replace(log_path.with_suffix(".log.1"))
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tandem", "serve", *to_arguments(flags)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if (code := child.poll()) is not None:
            known = Exit(code) if code in set(Exit) and code else Exit.FAILURE
            raise CommandError(f"the engine ended while it started (exit {code}):\n{_tail(log_path)}", known)
        record = read_record(folder)
        if record is not None and record.pid == child.pid and _is_ready(record.url):
            output.note(f"ready at {record.url} (process {child.pid}); log: {log_path}")
            return
        time.sleep(POLL_S)
    raise CommandError(
        f"not ready within {wait_s:g} s; it goes on loading (`tandem status` tells, `tandem stop` ends it):\n"
        f"{_tail(log_path)}",
        Exit.NOT_READY,
    )


def end(engine: Running, timeout_s: float | None) -> None:
    """Ask an engine to drain and end, and kill it after `timeout_s`."""
    pid = engine.record.pid if engine.record else _pid_of(engine)
    if timeout_s is None:
        timeout_s = resolve().settings.drain_timeout + 15
    if not _signal(pid, signal.SIGTERM):
        return
    if not _wait_for(lambda: not is_locked(engine.state_dir), timeout_s):
        output.warn(f"process {pid} did not end within {timeout_s:g} s; killing it")
        _signal(pid, signal.SIGKILL)
        if not _wait_for(lambda: not is_locked(engine.state_dir), 10.0):
            raise CommandError(f"process {pid} cannot be killed")


def _pid_of(engine: Running) -> int:
    """The process that holds a state directory whose engine has not opened its port yet."""
    text = (engine.state_dir / LOCK_NAME).read_text().strip()
    if not text.isdigit():
        raise CommandError(f"the process that holds {engine.state_dir} is not known yet; try again", Exit.NOT_READY)
    return int(text)


def _address(engine: Running) -> Address:
    if engine.record is None:
        raise CommandError(f"the engine of {engine.state_dir} has not opened its port yet", Exit.NOT_READY)
    return Address.of(engine.record.url)


def _is_ready(url: str) -> bool:
    try:
        return health(Address.of(url), timeout_s=2.0).status == Status.OK
    except (Unreachable, Refused):
        return False


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


def _tail(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as log:
        return "".join(deque(log, maxlen=TAIL_LINES)).rstrip() or "(the log is empty)"
