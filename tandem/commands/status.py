"""`tandem status`: what the running engine does, and its supervisor, in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from console.text.figures import span
from engine.memory.sizes import size
from engine.protocol import Health, Lane
from tandem import output
from tandem.client.register import Running, find_engine, unrecorded_address, usual_state_dir
from tandem.client.wire import Address, get, health
from tandem.commands.options import JsonOption, StateDirOption, UrlOption
from tandem.exits import CommandError, Exit
from tandem.service.hold import describe_hold
from tandem.service.supervisor_report import Report, State, describe_report, read_report

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def status(
    state_dir: StateDirOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say what the running engine does, and its supervisor. Exit 3 where none runs."""
    if url is not None:
        address, watched, service = Address.of(url), None, None
    else:
        engine = _find_engine(state_dir)
        address = _address(engine)
        watched, service = _watched(engine)
    if json:
        shown: dict[str, Any] = msgspec.json.decode(get(address, "/health")[1])
        output.emit_json({**shown, "supervisor": watched})
    else:
        output.emit(describe(health(address), address.url))
        if service is not None:
            output.emit(service)


def _watched(engine: Running) -> tuple[Report | None, str | None]:
    """The report of the engine's supervisor, and one line that says what supervises the engine; either may be None."""
    if engine.supervisor is None:
        unit_name = engine.record.unit if engine.record else None
        return None, unit_name and f"service  run by the systemd unit {unit_name}"
    last = read_report(engine.state_dir)
    if last is None or engine.supervisor not in (0, last.pid):
        return None, f"service  watched by process {engine.supervisor}, whose report could not be written"
    return last, describe_report(last)


def _find_engine(state_dir: Path | None) -> Running:
    """The engine that the flags name. Where none runs and the last one failed, the error says how it ended."""
    try:
        return find_engine(state_dir)
    except CommandError as why:
        if why.code != Exit.NOT_RUNNING:
            raise
        last = read_report(state_dir or usual_state_dir())
        ended = None if last is None or last.state is State.ENDED else describe_report(last)
        raise CommandError("\n".join(filter(None, (why.message, ended, describe_hold()))), why.code) from why


def _address(engine: Running) -> Address:
    if engine.record is None:
        if (address := unrecorded_address(engine)) is not None:
            return address
        last = read_report(engine.state_dir)
        more = f"\n{describe_report(last)}" if last is not None and engine.supervisor is not None else ""
        raise CommandError(f"the engine of {engine.state_dir} has not opened its port yet{more}", Exit.NOT_READY)
    return Address.of_engine(engine.record)


def describe(health: Health, url: str) -> str:
    """The engine's state, its lanes, its queue and its memory, one line each."""
    parallel, memory, totals = health.parallel, health.memory, health.parallel.totals
    model = f"{health.model.name} on {health.model.device}" if health.model else "no model yet"
    lines = [f"{health.status.value}: {model} at {url}, up {span(health.uptime_s)}"]
    if health.loading is not None:
        lines.append(
            f"loading  {health.loading.stage}"
            + (f", {size(health.loading.done_bytes)} of {size(total)}" if (total := health.loading.total_bytes) else "")
        )
        # The other figures are not known while the engine loads.
        return "\n".join(lines)
    lines.append(
        f"slots    {parallel.running} of {parallel.slots} busy, {parallel.decoding} writing, "
        f"{parallel.waiting} waiting; "
        f"{totals.served} served, {totals.refused} refused, {totals.errors} failed, {totals.abandoned} abandoned"
    )
    if parallel.max_running_reason:
        lines.append(f"         {parallel.max_running_reason}")
    lines += [_lane(lane) for lane in health.lanes]
    lines += [f"  waits {span(q.since_s)}: {q.client}, {q.prompt_tokens} tokens: {q.reason}" for q in health.queue]
    lines.append(
        f"memory   {size(memory.available)} of {size(memory.total)} available, floor {size(memory.floor)}; "
        f"KV {size(health.kv_pool.committed_bytes)} committed of {size(health.kv_pool.reserved_bytes)} reserved"
    )
    if health.state_dir.defect is not None:
        lines.append(f"state    {health.state_dir.defect}")
    if health.log.dropped:
        lines.append(f"log      {health.log.dropped:,} lines were lost: nobody read them, or stderr took no more")
    if health.ledger.defect is not None:
        lines.append(f"ledger   not written: {health.ledger.defect}")
    lines += [f"role     {role.name}: {role.state.value}, {role.reason}" for role in health.roles]
    return "\n".join(lines)


def _lane(lane: Lane) -> str:
    who = f"  {lane.request.client}" if lane.request else ""
    why = f"  ({lane.reason})" if lane.reason else ""
    return (
        f"  {lane.slot} {lane.kind:<4} {lane.rows:>7}/{lane.window:<7} {lane.phase_text or lane.state.value}{who}{why}"
    )
