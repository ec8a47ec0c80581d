"""The KV pool: every slot's window reserved as addresses, memory taken only for rows in use.

One range a slot, divided page-aligned among the layout's tensors; in each the rows lie contiguous from row 0. What is
backed is always a prefix of a tensor, so its page map is one number: pages from the start. Only the engine thread
calls the pool.

    pool = KvPool(layout, windows, margin_rows=256, backing=KvBacking.POOLED)
    pool.guard = HardFloor(probe, hard_floor, ladder)      # asked before pages are taken
    ledger.credit(slot, pool.commit(slot, rows))           # before each pass: rows [0, rows) are backed, a margin too
    pool.ahead(slot, rows)                                 # what a later pass will need, where a helper takes pages
    pool.release(slot, kept_rows)                          # after a request: whole pages past the rows kept go back
    pool.stats(), pool.check_integrity()

Where taking a page is slow (a GPU's), a helper thread takes the margin while rounds run: the engine thread hands it
the span, books it, and waits for it only in a commit that needs its rows. `pages` then counts what was asked for,
`ready` what is known to be there. The same thread unmaps what goes back; its pages are off the books at once.

`committed` counts pages that this pool asked for. Between rounds it equals the memory behind the ranges exactly
(`check_integrity(deep=True)` compares it with the kernel's count).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine import protocol
from engine.memory.budget import KvBacking
from engine.memory.kv.host_vm import BACKEND, PAGE_BYTES, SYSTEM_PAGE_BYTES, HostRange, resident_bytes
from engine.memory.kv.layout import KvLayout
from engine.memory.kv.ranges import KvRange, RangeBacking
from engine.memory.pressure import Guard, Shortfall
from engine.memory.sizes import size


class CommitRefused(Exception):
    """Pages that cannot be had: `need` bytes to hold `rows` rows on `slot`.

    `shortfall` holds the figures where the hard floor forbids it even after everything was given back that may be;
    None where the system itself had no memory.
    """

    def __init__(self, slot: int, rows: int, need: int, shortfall: Shortfall | None) -> None:
        self.slot = slot
        self.rows = rows
        self.need = need
        self.shortfall = shortfall
        why = (
            "and the system has no memory for them"
            if shortfall is None
            else f"{size(shortfall.available)} is available after {size(shortfall.freed)} was given back, and "
            f"{size(shortfall.floor)} stays free as the hard floor (TANDEM_KV_HARD_FLOOR_GB)"
        )
        super().__init__(f"no memory for the next KV pages: slot {slot} needs {size(need)} to hold {rows} rows, {why}")


class IntegrityError(Exception):
    """The pool's books disagree with its page maps, or with the kernel: a defect, never a client's doing."""


def _held_on_host(ranges: Sequence[KvRange]) -> list[int]:
    return resident_bytes([(r.address, r.length) for r in ranges])


HOST = RangeBacking(BACKEND, PAGE_BYTES, SYSTEM_PAGE_BYTES, HostRange, _held_on_host)
"""Anonymous memory of this machine."""


@dataclass(slots=True)
class _Slot:
    """One slot's range and page map: `pages[t]` pages of tensor `t` are backed, or being backed by the helper, from its
    start; `ready[t]` of them are there, enough for `ready_rows` rows."""

    index: int
    range: KvRange
    window: int
    offsets: tuple[int, ...]
    limits: tuple[int, ...]
    pages: list[int]
    ready: list[int]
    rows: int = 0
    ready_rows: int = 0
    committed: int = 0


class KvPool:
    """KV memory of all slots, `windows[slot]` rows reserved each (implements `engine.execution.runner.KvAddresses`).

    `ranges` is the memory it lies in. `margin_rows` are backed past the rows a commit names, so that the next few
    rounds find their pages. With `KvBacking.WHOLE_WINDOW` everything is committed here and nothing is given back.
    Raises ValueError for figures that make no sense, OSError where addresses cannot be reserved, CommitRefused where
    whole windows cannot be backed.
    """

    def __init__(
        self,
        layout: KvLayout,
        windows: Sequence[int],
        *,
        margin_rows: int = 256,
        backing: KvBacking = KvBacking.POOLED,
        guard: Guard | None = None,
        page_bytes: int | None = None,
        ranges: RangeBacking = HOST,
    ) -> None:
        if margin_rows < 0:
            raise ValueError(f"TANDEM_KV_MARGIN_ROWS must be 0 or more, got {margin_rows}")
        if not layout.tensors or any(tensor.row_bytes < 1 for tensor in layout.tensors):
            raise ValueError(f"a KV layout needs tensors of at least one byte a row, got {layout}")
        if not windows or min(windows) < 1:
            raise ValueError(f"every slot needs a window of at least one row, got {list(windows)}")
        page = page_bytes if page_bytes is not None else ranges.page_bytes
        if page < 1 or page % ranges.granule_bytes:
            raise ValueError(f"KV pages must be a multiple of {ranges.granule_bytes} bytes, got {page}")
        self.layout = layout
        self.guard = guard
        """Asked before pages are taken; None takes them unasked."""
        self._margin = margin_rows
        self._backing = backing
        self._page = page
        self._ranges = ranges
        self._row_bytes = tuple(tensor.row_bytes for tensor in layout.tensors)
        self._kinds = tuple(tensor.kind for tensor in layout.tensors)
        self._by_kind = dict.fromkeys(("engine", "drafter", *self._kinds), 0)
        self._committed = self._peak = self._commits = self._releases = self._refused = 0
        self._slots: list[_Slot] = []
        self._takes_ahead = ranges.ahead and backing is KvBacking.POOLED
        try:
            for window in windows:
                self._slots.append(self._reserve(len(self._slots), window))
            if backing is KvBacking.WHOLE_WINDOW:
                for slot, window in enumerate(windows):
                    self.commit(slot, window)
        except BaseException:
            self.close()
            raise

    def _reserve(self, index: int, window: int) -> _Slot:
        limits = tuple(_pages(window * row, self._page) for row in self._row_bytes)
        offsets: list[int] = []
        end = 0
        for limit in limits:
            offsets.append(end)
            end += limit * self._page
        return _Slot(
            index, self._ranges.reserve(end), window, tuple(offsets), limits, [0] * len(limits), [0] * len(limits)
        )

    def base(self, slot: int, tensor: int) -> int:
        """Address of row 0 of the slot's `tensor` (index into the layout)."""
        entry = self._slots[slot]
        return entry.range.address + entry.offsets[tensor]

    def window(self, slot: int) -> int:
        """Rows reserved for the slot."""
        return self._slots[slot].window

    def committed_rows(self, slot: int) -> int:
        """Rows of the slot that pages back in every tensor."""
        return self._slots[slot].rows

    def committed_bytes(self, slot: int) -> int:
        """Bytes that the slot's pages take."""
        return self._slots[slot].committed

    def pages_to_commit(self, slot: int, rows: int) -> int:
        """Bytes that `commit(slot, rows)` would take now."""
        entry = self._slots[slot]
        target = min(rows + self._margin, entry.window)
        if target <= entry.rows:
            return 0
        return self._page * sum(
            max(0, _pages(target * row, self._page) - have)
            for row, have in zip(self._row_bytes, entry.pages, strict=True)
        )

    def commit(self, slot: int, rows: int) -> int:
        """Back rows [0, rows + margin) of the slot, capped at its window; return the bytes newly taken.

        One comparison where they are backed already. New pages are zero. With a
        helper, [0, rows) are backed on return and the margin may be on its way; its bytes count as taken by the commit
        that first needs them. Raises CommitRefused where the guard or the system has no memory, with what the slot held
        before left as it was; ValueError for more rows than the window.
        """
        entry = self._slots[slot]
        target = min(rows + self._margin, entry.window)
        if target <= entry.rows and rows <= entry.ready_rows:
            return 0
        if rows > entry.window:
            raise ValueError(f"slot {slot} has a window of {entry.window} rows, {rows} were to be committed")
        settled = self._await_helper(entry) if rows > entry.ready_rows else 0
        if target <= entry.rows:
            return settled
        if self._takes_ahead and rows <= entry.ready_rows:
            self.ahead(slot, rows)
            return settled
        if self.guard is not None:
            need = self.pages_to_commit(slot, rows)
            shortfall = self.guard.make_room(need)
            if shortfall is not None:
                self._refused += 1
                raise CommitRefused(slot, rows, need, shortfall)
        return settled + self._take(slot, target)

    def ahead(self, slot: int, rows: int) -> None:
        """Let the helper back rows [0, rows + margin), capped at the window. Does nothing where there is no helper, or
        the guard has no room: a commit that needs the rows then says so."""
        entry = self._slots[slot]
        target = min(rows + self._margin, entry.window)
        if not self._takes_ahead or target <= entry.rows:
            return
        wanted = self._wanted(entry, target)
        taken = self._page * (sum(wanted) - sum(entry.pages))
        if self.guard is not None and self.guard.make_room(taken) is not None:
            return
        entry.range.commit_ahead(
            [
                (offset + have * self._page, (want - have) * self._page)
                for offset, have, want in zip(entry.offsets, entry.pages, wanted, strict=True)
                if want > have
            ]
        )
        self._rebook(entry, wanted)
        self._commits += 1
        self._peak = max(self._peak, self._committed)

    def _await_helper(self, entry: _Slot) -> int:
        """Wait for what the helper was handed for the slot; return its bytes. Where it could not be had it is given up:
        the caller asks for what it needs."""
        had = sum(entry.ready)
        try:
            self._back(entry, entry.ready, entry.pages)
        except (MemoryError, OSError) as error:
            self._rebook(entry, list(entry.ready))
            if isinstance(error, OSError):
                raise
        self._make_ready(entry, entry.pages)
        return self._page * (sum(entry.ready) - had)

    def _make_ready(self, entry: _Slot, pages: list[int]) -> None:
        entry.ready = list(pages)
        entry.ready_rows = self._backed_rows(entry, entry.ready)

    def _wanted(self, entry: _Slot, target: int) -> list[int]:
        rows = zip(self._row_bytes, entry.pages, strict=True)
        return [max(_pages(target * row, self._page), have) for row, have in rows]

    def _take(self, slot: int, target: int) -> int:
        entry = self._slots[slot]
        wanted = self._wanted(entry, target)
        taken = self._page * (sum(wanted) - sum(entry.pages))
        try:
            self._back(entry, entry.pages, wanted)
        except MemoryError as error:
            self._refused += 1
            raise CommitRefused(slot, target, taken, None) from error
        self._rebook(entry, wanted)
        self._make_ready(entry, wanted)
        self._commits += 1
        self._peak = max(self._peak, self._committed)
        return taken

    def _back(self, entry: _Slot, have: Sequence[int], wanted: Sequence[int]) -> None:
        """Back each tensor's pages from those it has to those wanted; where that fails, none of them."""
        spans = [
            (offset + first * self._page, (end - first) * self._page)
            for offset, first, end in zip(entry.offsets, have, wanted, strict=True)
            if end > first
        ]
        try:
            for span in spans:
                entry.range.commit(*span)
        except (MemoryError, OSError):
            for span in spans:
                entry.range.give_back(*span)
            raise

    def release(self, slot: int, keep_rows: int) -> int:
        """Give back the slot's whole pages past `keep_rows` (no margin is kept); return the bytes freed.

        Rows at and past `keep_rows` are lost or zero afterwards. Nothing is freed where whole windows are backed.
        """
        entry = self._slots[slot]
        if keep_rows < 0:
            raise ValueError(f"slot {slot} cannot keep {keep_rows} rows")
        if self._backing is KvBacking.WHOLE_WINDOW:
            return 0
        kept = [
            min(_pages(keep_rows * r, self._page), have) for r, have in zip(self._row_bytes, entry.pages, strict=True)
        ]
        freed = self._page * (sum(entry.pages) - sum(kept))
        if freed == 0:
            return 0
        for offset, have, keep in zip(entry.offsets, entry.pages, kept, strict=True):
            if keep < have:
                entry.range.give_back(offset + keep * self._page, (have - keep) * self._page)
        self._rebook(entry, kept)
        self._make_ready(entry, [min(ready, keep) for ready, keep in zip(entry.ready, kept, strict=True)])
        self._releases += 1
        return freed

    def _rebook(self, entry: _Slot, pages: list[int]) -> None:
        for kind, have, now in zip(self._kinds, entry.pages, pages, strict=True):
            change = (now - have) * self._page
            self._by_kind[kind] += change
            entry.committed += change
            self._committed += change
        entry.pages = pages
        entry.rows = self._backed_rows(entry, pages)

    def _backed_rows(self, entry: _Slot, pages: list[int]) -> int:
        backed = min(have * self._page // row for row, have in zip(self._row_bytes, pages, strict=True))
        return min(backed, entry.window)

    def stats(self) -> protocol.KvPool:
        """The pool as `/health` shows it."""
        return protocol.KvPool(
            enabled=self._backing is KvBacking.POOLED,
            backend=self._ranges.name,
            page_bytes=self._page,
            reserved_bytes=sum(sum(entry.limits) for entry in self._slots) * self._page,
            committed_bytes=self._committed,
            committed_pages=self._committed // self._page,
            peak_committed_bytes=self._peak,
            by_slot=[entry.committed for entry in self._slots],
            by_kind=dict(self._by_kind),
            commits=self._commits,
            releases=self._releases,
            refused=self._refused,
        )

    def check_integrity(self, *, deep: bool = False) -> None:
        """Hold the books against the page maps, and with `deep` against the kernel's own count of resident memory
        (Linux; costs milliseconds). Raises IntegrityError naming what differs."""
        by_kind = dict.fromkeys(self._by_kind, 0)
        for slot, entry in enumerate(self._slots):
            for tensor, (have, limit) in enumerate(zip(entry.pages, entry.limits, strict=True)):
                if not 0 <= have <= limit:
                    raise IntegrityError(f"slot {slot} tensor {tensor}: {have} pages backed of {limit}")
                by_kind[self._kinds[tensor]] += have * self._page
            _same(f"slot {slot} committed bytes", entry.committed, sum(entry.pages) * self._page)
            _same(f"slot {slot} committed rows", entry.rows, self._backed_rows(entry, entry.pages))
            if any(ready > have for ready, have in zip(entry.ready, entry.pages, strict=True)):
                raise IntegrityError(f"slot {slot}: {entry.ready} pages are ready of {entry.pages}")
        for kind, counted in by_kind.items():
            _same(f"kind {kind} committed bytes", self._by_kind[kind], counted)
        _same("committed bytes", self._committed, sum(by_kind.values()))
        for slot, entry in enumerate(self._slots):
            try:
                entry.range.check_integrity()
            except RuntimeError as error:
                raise IntegrityError(f"KV pool: slot {slot}: {error}") from error
        if deep:
            for entry in self._slots:
                self._await_helper(entry)
            held = self._ranges.held([entry.range for entry in self._slots])
            for slot, entry in enumerate(self._slots):
                _same(f"slot {slot} resident bytes", entry.committed, held[slot])

    def close(self) -> None:
        """Return all memory and addresses. Nothing may read the KV afterwards."""
        for entry in self._slots:
            entry.range.close()
        self._slots = []


def _pages(count: int, page: int) -> int:
    return -(-count // page)


def _same(what: str, booked: int, found: int) -> None:
    if booked != found:
        raise IntegrityError(f"KV pool: {what}: {booked} booked, {found} found")
