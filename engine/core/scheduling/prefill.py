"""What runs next: which prompt is read, how much of it, and when reading must let decoding go on.

Prompts are read one at a time, the oldest first. At a chunk boundary a long read gives way to a prompt under half of
what it has left, at most twice. After a chunk that kept decoding waiting, decoding is owed its share of the time
before the next chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_YIELDS = 2


@dataclass(frozen=True, slots=True)
class PrefillCandidate:
    """A slot whose prompt is not read to its end: `remaining` tokens are left, `order` is its place by arrival
    (smaller is older), `yields` how often it gave way so far."""

    slot: int
    remaining: int
    order: int
    yields: int


@dataclass(frozen=True, slots=True)
class PrefillDecision:
    """Read the next chunk of `slot`; `gave_way` is the slot whose read stops for it, if one does."""

    slot: int
    gave_way: int | None


def choose_prefill(candidates: tuple[PrefillCandidate, ...], active: int | None) -> PrefillDecision | None:
    """Choose whose prompt is read next. `active` is the slot that was read last (None, or one that is no longer
    reading, where that read ended). None where nothing is to be read."""
    if not candidates:
        return None
    current = next((r for r in candidates if r.slot == active), None) or min(candidates, key=lambda r: r.order)
    if current.yields < MAX_YIELDS:
        shorter = [r for r in candidates if 2 * r.remaining < current.remaining]
        if shorter:
            return PrefillDecision(min(shorter, key=lambda r: r.order).slot, gave_way=current.slot)
    return PrefillDecision(current.slot, gave_way=None)


def chunk_end(done: int, total: int, chunk: int) -> int:
    """Where the chunk that starts at token `done` ends: at the next multiple of `chunk`, or the prompt's end.

    Ends at absolute multiples keep a prompt's chunks the same wherever a resumed read begins.
    """
    return min(total, (done // chunk + 1) * chunk)


class DecodeShare:
    """Keeps decoding its share of the time while prompts are read.

    A chunk that took `t` seconds while `share` belongs to decoding owes it `share / (1 - share) * t` seconds of
    rounds. Nothing is owed where nothing decodes.
    """

    def __init__(self, share: float) -> None:
        if not 0.0 <= share < 1.0:
            raise ValueError(f"decode_share must be at least 0 and below 1, not {share}")
        self._ratio = share / (1.0 - share)
        self._owed = 0.0

    def chunk_ran(self, seconds: float, *, decoding: int) -> None:
        """A chunk took `seconds` while `decoding` slots waited for it."""
        if decoding:
            self._owed += seconds * self._ratio

    def round_ran(self, seconds: float) -> None:
        """A decode round took `seconds`. What the last one took too much is held against the next chunk's debt."""
        if self._owed > 0.0:
            self._owed -= seconds

    def may_read(self, *, decoding: int) -> bool:
        """Whether a chunk may run now, with `decoding` slots that would wait for it."""
        if not decoding:
            self._owed = 0.0
        return self._owed <= 0.0
