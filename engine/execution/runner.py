"""The one entry through which the loop computes: a row batch in, logits out.

`Runner` is what the loop knows of a model on a device. Every slot's rows go through `forward`, be they a prompt chunk,
plain decode, a chain or a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.execution.rows import RowBatch
from engine.memory.kv.layout import KvLayout
from kernels.sampling import SamplingSpec, sample_token

StepOutput = NDArray[np.float32] | int
"""What a row's logits came to: the token drawn from them, -1 where one is no number or the largest is not finite; or
the logits themselves."""


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

    def forward_and_sample(self, batch: RowBatch, specs: Sequence[SamplingSpec | None]) -> list[StepOutput]:
        """Compute all rows as `forward` does, and sample a token from the logits of each of `batch.logit_rows` by its
        entry of `specs` and the rule of `kernels.sampling`. Where that is None, the output is the row of logits, a
        view as there."""
        ...

    def copy_rows(self, source: int, target: int, start: int, end: int) -> None:
        """Copy KV rows `[start, end)` of slot `source` to the same rows of slot `target`, whose pages are committed."""
        ...

    def workspace_bytes(self) -> int:
        """Bytes of transient buffers that this runner holds now."""
        ...


def sample_all(logits: NDArray[np.float32], specs: Sequence[SamplingSpec | None]) -> list[StepOutput]:
    """What `Runner.forward_and_sample` returns, from logits (rows, vocabulary) on the host."""
    outcomes: list[StepOutput] = []
    for row, spec in zip(logits, specs, strict=True):
        if spec is None:
            outcomes.append(row)
        else:
            best = int(row.argmax())
            outcomes.append(sample_token(row, best, spec) if np.isfinite(row[best]) else -1)
    return outcomes


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
