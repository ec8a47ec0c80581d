"""The row batch: every token position that one forward computes, for all slots, in one table.

A row is `(slot, token, position, parent)`. Plain decode is one row a slot, a chain or a tree is more rows, a prompt
chunk is many. A row sees the KV rows `[0, prefix)` of its slot and then its path: the KV rows of its ancestors within
the pass in order of depth, itself last. Its result depends on nothing else, whatever shares the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.program import RowBatch as RowBatch

ROOT = -1
"""Parent of a row that follows the slot's committed prefix."""


@dataclass(frozen=True, slots=True)
class SlotRows:
    """One slot's share of a pass, in the order of its rows.

    `start` is the number of committed KV rows; row i of the share writes its K and V to KV row `start + i`. `parents`
    holds, for each row, ROOT or the index (within this share) of an earlier row. None is a chain: each row's parent is
    the one before it. `logits` marks the rows whose logits are wanted (indices within the share).
    """

    slot: int
    start: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits: Sequence[int] = ()


def pack(shares: Sequence[SlotRows]) -> RowBatch:
    """Pack the slots' shares into one batch, in the order given.

    Raises ValueError where a share is empty, a parent is not an earlier row of its share, or a slot appears twice.
    """
    slots = [s.slot for s in shares]
    if len(set(slots)) != len(slots):
        raise ValueError(f"a slot has two shares in one pass: {slots}")
    slot: list[int] = []
    token: list[int] = []
    kv_row: list[int] = []
    prefix: list[int] = []
    path: list[int] = []
    ancestor_start: list[int] = [0]
    logit_rows: list[int] = []
    for share in shares:
        if not share.tokens:
            raise ValueError(f"slot {share.slot} has an empty share")
        base = len(token)
        n = len(share.tokens)
        slot += [share.slot] * n
        token += share.tokens
        rows = range(share.start, share.start + n)
        kv_row += rows
        if share.parents is None:
            prefix += rows
            path += rows
            ancestor_start += range(ancestor_start[-1] + 1, ancestor_start[-1] + n + 1)
        else:
            for ancestors in _paths(share):
                prefix.append(share.start)
                path += [share.start + a for a in ancestors]
                ancestor_start.append(len(path))
        logit_rows += [base + i for i in share.logits]
    starts = np.asarray(ancestor_start, np.int32)
    kv_rows = np.asarray(kv_row, np.int32)
    if all(share.parents is None for share in shares):
        # Chains alone: a row's prefix, position and path are its KV row, and every round would pay for copies.
        prefixes = positions = paths = kv_rows
    else:
        prefixes = np.asarray(prefix, np.int32)
        positions = prefixes + np.diff(starts) - np.int32(1)
        paths = np.asarray(path, np.int32)
    return RowBatch(
        slot=np.asarray(slot, np.int32),
        token=np.asarray(token, np.int32),
        position=positions,
        kv_row=kv_rows,
        prefix=prefixes,
        ancestor_start=starts,
        ancestors=paths,
        logit_rows=np.asarray(logit_rows, np.int32),
    )


def _paths(share: SlotRows) -> list[list[int]]:
    """Each row's ancestors within the share by depth, itself last."""
    parents = share.parents or ()
    if len(parents) != len(share.tokens):
        raise ValueError(f"slot {share.slot}: {len(parents)} parents for {len(share.tokens)} rows")
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        if not ROOT <= parent < i:
            raise ValueError(f"slot {share.slot}: row {i} has parent {parent}, not an earlier row of its share")
        paths.append(([] if parent == ROOT else paths[parent]) + [i])
    return paths
