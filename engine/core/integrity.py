"""The engine's books, held against each other whenever it falls idle: what nobody uses must be accounted to nobody."""

from __future__ import annotations

from engine.core.state import EngineState
from engine.memory.kv.pool import IntegrityError


def find_defect(state: EngineState) -> str | None:
    """What does not add up while no request is in the engine; None where everything does.

    A finding is a defect of ours, and never a reason to stop serving: rows are compared with their tokens wherever they
    are used again.
    """
    try:
        state.pool.check_integrity()
    except IntegrityError as error:
        return str(error)
    promised = state.memory.reservations.outstanding()
    if promised:
        return f"reservations: {promised:,} bytes are promised while nothing runs"
    for slot in state.slots:
        held = state.resident.of(slot)
        tokens = 0 if held is None else len(held.key.tokens)
        if slot.running is not None:
            return f"slot {slot.id}: a request that has ended still holds it"
        if tokens != slot.state.rows:
            return f"slot {slot.id}: {slot.state.rows} rows are valid for a conversation of {tokens} tokens"
        if slot.state.rows > state.pool.committed_rows(slot.id):
            return f"slot {slot.id}: pages back {state.pool.committed_rows(slot.id)} of {slot.state.rows} rows"
    return None
