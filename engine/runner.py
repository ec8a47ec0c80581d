"""The one entry through which the loop computes: a row batch in, logits out.

`Runner` is what the loop knows of a model on a device. Every slot's rows go through `forward`, be they a prompt chunk,
plain decode, a chain or a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.kv.layout import KvLayout
from engine.rows import RowBatch


class KvAddresses(Protocol):
    """Where a slot's KV tensors lie: what a runner needs of the pool."""

    def base(self, slot: int, tensor: int) -> int:
        """Address of row 0 of the slot's `tensor` (index into the layout)."""
        ...

    def window(self, slot: int) -> int:
        """Rows reserved for the slot."""
        ...


class Runner(Protocol):
    """A loaded model on a device. Only the engine thread calls it."""

    layout: KvLayout
    vocab_size: int
    max_rows: int
    """Rows that one forward takes at most."""

    def attach(self, kv: KvAddresses, slots: int) -> None:
        """Learn where the slots' KV lies. Called once, before the first forward."""
        ...

    def forward(self, batch: RowBatch) -> NDArray[np.float32]:
        """Compute all rows, writing each row's K and V at its `kv_row`; return the logits of `batch.logit_rows`, shape
        (len(logit_rows), vocab_size), float32. The array is a view that the next forward overwrites. The caller has
        committed every KV row that the batch writes."""
        ...

    def forward_best(self, batch: RowBatch) -> NDArray[np.int32]:
        """Compute all rows as `forward` does; return the lowest id of the largest logit for each of `batch.logit_rows`,
        or -1 where a logit is no number or the largest is not finite. The array is a view as there."""
        ...

    def commit_path(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Keep an accepted path of a tree: copy KV row `start + path[i]` to `start + i`, for i in order."""
        ...

    def copy_rows(self, source: int, target: int, start: int, end: int) -> None:
        """Copy KV rows `[start, end)` of slot `source` to the same rows of slot `target`, whose pages are committed."""
        ...

    def workspace_bytes(self) -> int:
        """Bytes of transient buffers that this runner holds now."""
        ...


def best_of(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """What `Runner.forward_best` returns, from logits (rows, vocabulary)."""
    best: NDArray[np.int32] = logits.argmax(axis=1).astype(np.int32)
    best[~np.isfinite(logits[np.arange(len(logits)), best])] = -1
    return best


def check_batch(batch: RowBatch, max_rows: int, vocab_size: int, windows: NDArray[np.int64]) -> None:
    """Refuse what would read or write outside the memory reserved for the slots, `windows` rows each.

    Raises ValueError naming what is outside.
    """
    if not 1 <= batch.n <= max_rows:
        raise ValueError(f"a pass of {batch.n} rows; 1 to {max_rows} (max_rows) are possible")
    if batch.slot.min() < 0 or batch.slot.max() >= len(windows):
        raise ValueError(f"slot {batch.slot.max()} in a pass; {len(windows)} are attached")
    if batch.token.min() < 0 or batch.token.max() >= vocab_size:
        raise ValueError(f"a token outside 0 .. {vocab_size - 1} (vocab) in a pass")
    if batch.kv_row.min() < 0 or (batch.kv_row >= windows[batch.slot]).any():
        raise ValueError("a KV row outside its slot's window in a pass")
