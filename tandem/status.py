"""Says a health snapshot in a few lines: what `tandem status` prints."""

from __future__ import annotations

from engine.memory.sizes import size
from engine.protocol import Health, Lane
from tandem.units import duration


def describe(health: Health, url: str) -> str:
    """The engine's state, its lanes, its queue and its memory, one line each."""
    parallel, memory, totals = health.parallel, health.memory, health.parallel.totals
    model = f"{health.model.name} on {health.model.device}" if health.model else "no model yet"
    lines = [f"{health.status.value}: {model} at {url}, up {duration(health.uptime_s)}"]
    if health.loading is not None:
        lines.append(
            f"loading  {health.loading.stage}"
            + (f", {size(health.loading.done_bytes)} of {size(total)}" if (total := health.loading.total_bytes) else "")
        )
        # What it will hold is not known yet, and zero would be a figure.
        return "\n".join(lines)
    lines.append(
        f"slots    {parallel.running} of {parallel.slots} busy, {parallel.decoding} writing, "
        f"{parallel.waiting} waiting; "
        f"{totals.served} served, {totals.refused} refused, {totals.errors} failed, {totals.abandoned} abandoned"
    )
    if parallel.max_running_reason:
        lines.append(f"         {parallel.max_running_reason}")
    lines += [_lane(lane) for lane in health.lanes]
    lines += [f"  waits {duration(q.since_s)}: {q.client}, {q.prompt_tokens} tokens: {q.reason}" for q in health.queue]
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
