"""The sentences that say why a request or a lane does not move, with their numbers. The wait for memory is worded where
its figures are: `engine.memory.admission`."""

from __future__ import annotations

from engine.core.scheduling.routing import Wait
from engine.protocol import WaitState


def waiting(wait: Wait) -> str:
    """Why a request waits for a slot."""
    match wait.state:
        case WaitState.HOME:
            return f"waits up to {_seconds(wait.limit_s or 0.0)} for slot {wait.home}, which holds its conversation"
        case WaitState.SLOT0:
            return f"too long for a side slot ({wait.side_window:,} tokens); waits for slot 0"
        case _ if wait.slots == 1:
            return "the only slot is busy"
        case _:
            return f"all {wait.slots} slots are busy"


def behind_memory(ahead: int) -> str:
    """Why a request waits for memory although it was not asked about yet: others wait for it first."""
    verb = "waits" if ahead == 1 else "wait"
    return f"waits behind {_count(ahead, 'request')} that {verb} for memory"


def yielded(to_slot: int, remaining: int) -> str:
    """Why a lane's read stands still: it gave way."""
    return f"gives way to the shorter prompt in slot {to_slot} ({remaining:,} tokens to read)"


def read_turn(reading_slot: int, remaining: int) -> str:
    """Why a lane's read has not begun or stands still: prompts are read one at a time."""
    return f"waits while slot {reading_slot} reads its prompt ({remaining:,} tokens to go)"


def left(completion: int, read: int | None, prompt: int) -> str:
    """How far a request had come whose client left. `read`: prompt tokens that were read; None while it waited."""
    if completion:
        return f"its client left; {_count(completion, 'token')} had been generated"
    if read is None:
        return "its client left while it waited"
    return f"its client left with {100 * read // max(1, prompt)} % of its prompt read"


def queue_full(limit: int, waiting_now: int) -> str:
    return f"the queue is full: {_count(waiting_now, 'request')} waiting, the limit is {limit} (TANDEM_QUEUE_LIMIT)"


def slot_timeout(waited_s: float, reason: str) -> str:
    return f"no slot came free within {_seconds(waited_s)} (TANDEM_QUEUE_TIMEOUT): {reason}"


def memory_timeout(waited_s: float, reason: str) -> str:
    return f"no memory came free within {_seconds(waited_s)} (TANDEM_QUEUE_TIMEOUT): {reason}"


def request_timeout(limit_s: float, completion: int) -> str:
    return (
        f"the request ran longer than {_seconds(limit_s)} (TANDEM_REQUEST_TIMEOUT); "
        f"{_count(completion, 'token')} had been generated"
    )


def _seconds(seconds: float) -> str:
    text = f"{seconds:.1f}".rstrip("0").rstrip(".")
    return f"{text} s"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
