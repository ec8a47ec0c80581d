"""KV ranges in plain device allocations: for drivers that have no virtual memory management."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.execution.cuda.page_stock import OutOfDeviceMemoryError
from engine.memory.kv.ranges import KvRange, RangeBacking

BACKEND = "cuda-plain"
PAGE_BYTES = 2 << 20


class PlainRange:
    """One allocation of `length` bytes (implements `KvRange`): backed as a whole and zero from the start, so a pool
    over it must commit whole windows. Raises OutOfDeviceMemoryError."""

    def __init__(self, length: int, device: torch.device) -> None:
        try:
            self._memory: torch.Tensor | None = torch.zeros(length, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise OutOfDeviceMemoryError(f"{device} has no {length} bytes for a window") from error
        self.address = self._memory.data_ptr()
        self.length = length

    def commit(self, offset: int, length: int) -> None:
        """Nothing to do: it is backed."""

    def give_back(self, offset: int, length: int) -> None:
        """Nothing goes back before the whole range does."""

    def commit_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Nothing to do: it is backed."""

    def check_integrity(self) -> None:
        """It has no page map."""

    def close(self) -> None:
        self._memory = None


def plain_ranges(device: torch.device) -> RangeBacking:
    """Plain allocations as a backing of the KV pool."""

    def held(ranges: Sequence[KvRange]) -> list[int]:
        return [r.length for r in ranges]

    return RangeBacking(BACKEND, PAGE_BYTES, PAGE_BYTES, lambda length: PlainRange(length, device), held)
