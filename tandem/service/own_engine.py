"""Starts an engine for one command's own use, in a state directory and on a port of its own, and ends it after."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.process.state_dir import read_record
from engine.protocol import Status
from tandem import output
from tandem.client.register import running
from tandem.client.wire import Address, NoAnswer, Refused, health
from tandem.exits import CommandError, Exit
from tandem.service.preflight import find_model
from tandem.settings.flags import to_arguments
from tandem.settings.origins import Flags, resolve

READY_S = 180.0
END_S = 20.0
POLL_S = 0.1


@contextmanager
def engine_for(url: str | None, flags: Flags, *, slots: int, own: bool) -> Iterator[Address]:
    """The engine that a measuring command talks to: the one at `url`, the one that runs, or one of its own with at
    least `slots` slots where none runs or `own` asks for it. Raises CommandError."""
    if url is not None and own:
        raise CommandError("--url and --own exclude each other", Exit.USAGE)
    others = [Address.of_engine(engine.record) for engine in running() if engine.record is not None]
    if url is None and len(others) > 1 and not own:
        raise CommandError(
            f"several engines run; choose one with --url: {', '.join(one.url for one in others)}", Exit.USAGE
        )
    if own or (url is None and not others):
        with _own(flags, slots) as address:
            yield address
        return
    if flags.values:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in flags.values)
        raise CommandError(f"{names}: an engine that already runs keeps its settings; add --own", Exit.USAGE)
    yield others[0] if url is None else Address.of(url)


@contextmanager
def _own(flags: Flags, slots: int) -> Iterator[Address]:
    wanted = resolve(flags).settings.model
    path, name = find_model(wanted)
    # A name is passed on as a name, so that the report shows it.
    model = wanted if name == wanted else path
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        log_path = Path(folder) / "engine.log"
        command = [sys.executable, "-m", "tandem", "serve", "--unlisted", f"--owned={os.getpid()}"]
        command += [*to_arguments(flags), f"--model={model}", f"--parallel={slots}", "--host=127.0.0.1", "--port=0"]
        command.append(f"--state-dir={folder}")
        output.note(f"starting an engine of its own with {slots} slots")
        with log_path.open("wb") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            yield _ready(child, Path(folder), log_path)
        finally:
            child.terminate()
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _ready(child: subprocess.Popen[bytes], folder: Path, log_path: Path) -> Address:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            known = Exit(child.returncode) if child.returncode in set(Exit) else Exit.FAILURE
            raise CommandError(f"the engine ended while it started:\n{log_path.read_text(errors='replace')}", known)
        record = read_record(folder)
        if record is not None:
            address = Address.of_engine(record)
            try:
                if health(address).status == Status.OK:
                    return address
            except (NoAnswer, Refused):
                pass
        time.sleep(POLL_S)
    raise CommandError(f"the engine was not ready within {READY_S:g} s", Exit.NOT_READY)
