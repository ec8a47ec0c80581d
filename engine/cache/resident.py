"""The resident level: the conversation that lies in each slot's own KV rows, where its next turn resumes in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine import protocol
from engine.memory.pressure import Level
from engine.sequence.cache_key import CacheKey, common_prefix
from engine.sequence.request_state import Slot


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """What an idle slot holds: the tokens of its valid rows, the first `prompt` of them served as a prompt."""

    key: CacheKey
    prompt: int


class ResidentLevel:
    """One conversation a slot. Its rows are the slot's KV pages, so this level holds no bytes of its own."""

    name = "resident"

    def __init__(self) -> None:
        self._held: dict[int, Conversation] = {}
        self._hits = 0
        self._restored = 0

    def of(self, slot: Slot) -> Conversation | None:
        """The conversation that `slot` holds while it is idle."""
        return self._held.get(slot.id)

    def match(self, slot: Slot, key: CacheKey) -> int:
        held = self._held.get(slot.id)
        if held is None or held.key.namespace != key.namespace:
            return 0
        return common_prefix(held.key.tokens, key.tokens)

    def restore(self, slot: Slot, key: CacheKey, limit: int) -> int:
        """The rows lie in place: keep those that match, forget the rest. The slot belongs to a new sequence then."""
        rows = min(self.match(slot, key), limit, slot.state.rows)
        slot.state.rewind(rows)
        self._held.pop(slot.id, None)
        slot.epoch += 1
        if rows:
            self._hits += 1
            self._restored += rows
        return rows

    def keep(self, slot: Slot, key: CacheKey, prompt: int) -> None:
        slot.epoch += 1
        if len(key.tokens) != slot.state.rows:
            raise ValueError(f"slot {slot.id} holds {slot.state.rows} rows, not the {len(key.tokens)} to be kept")
        if len(key.tokens):
            self._held[slot.id] = Conversation(key, min(prompt, len(key.tokens)))

    def drop(self, slot: Slot) -> None:
        """Forget what `slot` holds."""
        self._held.pop(slot.id, None)
        slot.state.rewind(0)
        slot.epoch += 1

    def stats(self) -> protocol.CacheLevel:
        return protocol.CacheLevel(entries=len(self._held), hits=self._hits, restored_tokens=self._restored)


class IdleConversations:
    """The pages of idle slots' conversations, as a rung of the pressure ladder: the least recently used goes first."""

    def __init__(
        self,
        name: str,
        *,
        level: Level,
        slots: Sequence[Slot],
        resident: ResidentLevel,
        committed: Callable[[int], int],
        give_back: Callable[[Slot], None],
    ) -> None:
        """`committed(slot)` are the bytes that a slot's pages take, `give_back` frees all of them."""
        self.name = name
        self.level = level
        self._slots = tuple(slots)
        self._resident = resident
        self._committed = committed
        self._give_back = give_back

    def held_bytes(self) -> int:
        return sum(self._committed(slot.id) for slot in self._idle())

    def reclaim(self, need: int) -> int:
        freed = 0
        for slot in sorted(self._idle(), key=lambda s: s.last_used):
            if freed >= need:
                break
            freed += self._committed(slot.id)
            self._resident.drop(slot)
            self._give_back(slot)
        return freed

    def _idle(self) -> list[Slot]:
        return [s for s in self._slots if s.running is None and not s.claimed]
