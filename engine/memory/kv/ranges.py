"""What the KV pool needs of whatever memory it lies in: address ranges whose pages come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class KvRange(Protocol):
    """One reserved range of `length` bytes from `address`. Offsets and lengths are multiples of the pool's page."""

    @property
    def address(self) -> int: ...

    @property
    def length(self) -> int: ...

    def commit(self, offset: int, length: int) -> None:
        """Back the span with zeroed pages, keeping those backed already. Raises MemoryError where none can be had,
        OSError where the driver fails; `give_back` of the same span then undoes it."""
        ...

    def give_back(self, offset: int, length: int) -> None:
        """Return the pages of the span, once nothing enqueued may still read them; it stays reserved."""
        ...

    def commit_ahead(self, spans: Sequence[tuple[int, int]]) -> None:
        """Let a helper thread back spans (offset, length) that nothing backs. A failure surfaces in the `commit` that
        needs one of their pages, or never."""
        ...

    def check_integrity(self) -> None:
        """Raises RuntimeError naming what is wrong with its page map."""
        ...

    def close(self) -> None:
        """Return everything. Calling it again does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class RangeBacking:
    """A kind of memory that KV ranges are made of. `name` is shown in `/health`; the pool's pages are `page_bytes` by
    default and always a multiple of `granule_bytes`; `ahead` is whether taking one is slow enough that
    `commit_ahead` should take it before it is needed. `held` counts the bytes behind each of some ranges, from the
    system's or the driver's own books."""

    name: str
    page_bytes: int
    granule_bytes: int
    reserve: Callable[[int], KvRange]
    held: Callable[[Sequence[KvRange]], list[int]]
    ahead: bool = False
