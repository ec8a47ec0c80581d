"""How KV lies in memory: one range per (slot, layer, K or V), rows contiguous, the whole window reserved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvTensor:
    """One KV tensor of a slot: `row_bytes` a token. `kind` names who it belongs to (`engine`, `drafter`, ...),
    `part` is `k` or `v`."""

    kind: str
    layer: int
    part: str
    row_bytes: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """All KV tensors of one slot, in the order of their ranges. Slots have the same tensors; only windows differ."""

    tensors: tuple[KvTensor, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes that one token's KV takes over all tensors."""
        return sum(t.row_bytes for t in self.tensors)
