"""`tandem start / stop / restart / status / logs`: the engine as a background service of this user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from tandem import output
from tandem.exits import CommandError, Exit
from tandem.flags import StateDirOption, with_engine_flags
from tandem.origins import Flags
from tandem.register import Running, meant, read_launch, running, unrecorded_address, usual_state_dir
from tandem.service import report, unit
from tandem.service.hold import describe_hold, remove_note, restore_after_crash
from tandem.service.launching import check_again, end, entered, environment_of, launch
from tandem.service.lines import as_json, as_text
from tandem.service.rotation import LOG_NAME, follow, read_back
from tandem.status import describe
from tandem.wire import Address, get, health

app = typer.Typer(add_completion=False, rich_markup_mode=None)

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
    """Start the engine in the background, watched over, and wait until it is ready."""
    if not another and (others := running()):
        raise CommandError(
            f"an engine of yours already runs: {', '.join(map(str, others))}; "
            "stop it, or add --another with a --port and --state-dir",
            Exit.REFUSED,
        )
    if not (flags.values or flags.profile or flags.env_file) and restore_after_crash(wait):
        return
    launch(flags, wait_s=wait)
    remove_note()


@app.command()
def stop(state_dir: StateDirOption = None, timeout: TimeoutOption = None) -> None:
    """Let running requests end, then stop the engine; kill it when that takes too long."""
    end(meant(state_dir), timeout)
    output.note("stopped")


@app.command()
def restart(state_dir: StateDirOption = None, timeout: TimeoutOption = None, wait: WaitOption = 180.0) -> None:
    """Stop the engine and start it again with the flags and variables it was started with."""
    environ = dict(os.environ)
    engine: Running | None = None
    try:
        engine = meant(state_dir)
    except CommandError as why:
        if why.code != Exit.NOT_RUNNING:
            raise
    folder = engine.state_dir if engine else state_dir or usual_state_dir()
    if engine is not None:
        if engine.record is not None and engine.record.unit is not None:
            unit.manage("restart", engine.record.unit)
            output.note(f"{engine.record.unit} was restarted")
            return
        environ = environment_of(engine)
    before = read_launch(folder)
    if before is None:
        left = (
            "how it was started is not known any more; `tandem stop` ends it" if engine else "`tandem start` starts one"
        )
        raise CommandError(f"no start is recorded in the state directory {folder}; {left}", Exit.NOT_RUNNING)
    # What would keep it from starting is found out before anything is stopped.
    check_again(before, environ)
    if engine is not None:
        end(engine, timeout)
    with entered(before.folder):
        launch(before.to_flags(), wait_s=wait, environ=environ)


@app.command()
def status(
    state_dir: StateDirOption = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The engine's address.")] = None,
    json: JsonOption = False,
) -> None:
    """Say what the running engine does, and its supervisor. Exit 3 where none runs."""
    if url is not None:
        address, watched, service = Address.of(url), None, None
    else:
        engine = _meant_or_why(state_dir)
        address = _address(engine)
        watched, service = _watched(engine)
    if json:
        shown: dict[str, Any] = msgspec.json.decode(get(address, "/health")[1])
        output.emit_json({**shown, "supervisor": watched})
    else:
        output.emit(describe(health(address), address.url))
        if service is not None:
            output.emit(service)


def _watched(engine: Running) -> tuple[report.Report | None, str | None]:
    """The report of the engine's supervisor, and who looks after the engine in one line; None for what there is not."""
    if engine.supervisor is None:
        unit_name = engine.record.unit if engine.record else None
        return None, unit_name and f"service  run by the systemd unit {unit_name}"
    last = report.read_report(engine.state_dir)
    if last is None or engine.supervisor not in (0, last.pid):
        return None, f"service  watched by process {engine.supervisor}, whose report could not be written"
    return last, report.describe(last)


@app.command()
def logs(
    state_dir: StateDirOption = None,
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many lines back.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print each line as a JSON object.")] = False,
) -> None:
    """Show the background engine's log. Exit 3 where there is none."""
    found = [engine for engine in running() if state_dir in (None, engine.state_dir)]
    if len(found) == 1 and found[0].record and found[0].record.unit:
        _show_journal(found[0].record.unit, lines, follow_on=follow_on, json=json)
    folder = state_dir or (found[0].state_dir if len(found) == 1 else usual_state_dir())
    path = folder / LOG_NAME
    try:
        newest_lines, file = read_back(path, lines)
    except FileNotFoundError:
        raise CommandError(f"there is no log at {path}: only `tandem start` writes one", Exit.NOT_RUNNING) from None
    show = as_json if json else as_text
    for line in newest_lines:
        output.emit(show(line))
    if not follow_on:
        file.close()
        return
    for line in follow(path, file):
        output.emit(show(line))


def _show_journal(name: str, lines: int, *, follow_on: bool, json: bool) -> NoReturn:
    """Become journalctl: what a unit's engine writes is in the journal."""
    words = ["journalctl", "--user", "-u", name, "-n", str(lines), "-o", "json" if json else "cat"]
    try:
        os.execvp(words[0], [*words, "-f"] if follow_on else words)
    except OSError as why:
        raise CommandError(f"the log is in the journal (`{' '.join(words)}`): {why.strerror}") from why


def _meant_or_why(state_dir: Path | None) -> Running:
    """The engine that is meant. Where none runs and the last one did not end as told, the error says how it did."""
    try:
        return meant(state_dir)
    except CommandError as why:
        if why.code != Exit.NOT_RUNNING:
            raise
        last = report.read_report(state_dir or usual_state_dir())
        ended = None if last is None or last.state is report.State.ENDED else report.describe(last)
        raise CommandError("\n".join(filter(None, (why.message, ended, describe_hold()))), why.code) from why


def _address(engine: Running) -> Address:
    if engine.record is None:
        if (address := unrecorded_address(engine)) is not None:
            return address
        last = report.read_report(engine.state_dir)
        more = f"\n{report.describe(last)}" if last is not None and engine.supervisor is not None else ""
        raise CommandError(f"the engine of {engine.state_dir} has not opened its port yet{more}", Exit.NOT_READY)
    return Address.of_engine(engine.record)
