"""The pool against plain tensors while windows grow: round times, map and unmap calls in rounds, bytes committed."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.cuda.driver import CudaDriver, supported
from engine.execution.cuda.page_stock import PageStock
from engine.execution.cuda.vmm import device_ranges
from engine.execution.rows import SlotRows, pack
from engine.memory.kv.layout import KvLayout
from engine.memory.kv.pool import KvPool
from engine.models import llama
from kernels.gpu.replay import CudaProgram
from kernels.sampling import GREEDY
from tests.gpu.beside import switching_as_served
from tests.gpu.real import at_address
from tests.gpu.setting import SHAPES, Slots, build, decode_graph, replay_ms, row

SLOTS = 16
GROWN_FROM, GROWN_TO = 1100, 2040
"""Rows of the growing windows: one shape of a pass, and in the largest shape one page a tensor on the way."""
REPEATS = 3
MARGIN = 64
_WARM = 4
MAP_CALLS = ("create", "map", "allow")
UNMAP_CALLS = ("unmap", "release")

Run = Callable[[int], None]
"""Compute a round in which every slot's row lies at that place."""


class CountedDriver:
    """A driver whose map and unmap calls are counted, for the thread that made it and for all others."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._owner = threading.get_ident()
        self.here: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()
        for name in (*MAP_CALLS, *UNMAP_CALLS):
            setattr(self, name, self._counted(name, getattr(driver, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            (self.here if threading.get_ident() == self._owner else self.elsewhere)[name] += 1
            return real(*args)

        return call


def _of(calls: Counter[str], names: tuple[str, ...]) -> int:
    return sum(calls[name] for name in names)


@dataclass
class Grown:
    """What rounds over growing windows took, on plain tensors and in the pool, and what the pool did meanwhile."""

    plain: list[list[float]] = field(default_factory=list)
    pool: list[list[float]] = field(default_factory=list)
    in_rounds: Counter[str] = field(default_factory=Counter)
    """Calls by the engine's thread."""
    by_helper: Counter[str] = field(default_factory=Counter)
    commits: list[list[float]] = field(default_factory=list)
    """Seconds that each round's commits took."""
    slowest_release: float = 0.0
    too_many_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Time of all rounds, plain over pool, by each round's median over the repeats."""
        plain, pooled = (np.median(np.array(rounds), axis=0).sum() for rounds in (self.plain, self.pool))
        return float(plain / pooled)

    @property
    def spread(self) -> str:
        """Where the difference comes from: the median round's, and the rounds that took longest beyond it."""
        plain, pooled = (np.median(np.array(rounds), axis=0) * 1e3 for rounds in (self.plain, self.pool))
        more = pooled - plain
        usual = float(np.median(more))
        worst = np.sort(more - usual)[::-1]
        return (
            f"a round more by {usual * 1e3:.0f} us at the median, beyond that {worst.sum():.1f} ms in all, "
            f"{worst[:10].sum():.1f} in the 10 worst rounds, {worst[:100].sum():.1f} in the 100 worst"
        )

    @property
    def right(self) -> bool:
        helped = all(_of(self.by_helper, names) for names in (MAP_CALLS, UNMAP_CALLS))
        return not self.in_rounds.total() and not self.too_many_bytes and helped

    def __str__(self) -> str:
        worst = [max(np.median(np.array(rounds), axis=0)) * 1e3 for rounds in (self.plain, self.pool)]
        commits = np.array(self.commits) * 1e6
        here, helper = ((_of(c, MAP_CALLS), _of(c, UNMAP_CALLS)) for c in (self.in_rounds, self.by_helper))
        verdict = "right" if self.right else "WRONG"
        return (
            f"plain/pool {self.ratio:.4f} over {len(self.pool[0])} rounds with the window growing, {len(self.pool)} "
            f"times; {self.spread}; worst round {worst[0]:.2f} and {worst[1]:.2f} ms; in rounds {here[0]} map calls "
            f"and {here[1]} unmap calls, by the helper {helper[0]} and {helper[1]}; a round's commits "
            f"{commits.max():.0f} us at most, median {np.median(commits):.0f}, slowest release "
            f"{self.slowest_release * 1e6:.0f} us; "
            f"slots with more bytes than rows and a page a tensor {self.too_many_bytes}: {verdict}"
        )


def beyond(pool: KvPool, layout: KvLayout, slot: int, rows: int) -> bool:
    """Whether a slot's committed bytes are not those of `rows` rows, within one page a tensor."""
    spare = pool.committed_bytes(slot) - rows * layout.row_bytes
    return not 0 <= spare < pool.stats().page_bytes * len(layout.tensors)


def warm(run: Run, first: int) -> None:
    """Rounds until the pass has its graph: another table of addresses drops the captured ones."""
    for _ in range(_WARM):
        run(first - 1)


def grow(
    pool: KvPool,
    stock: PageStock,
    driver: CountedDriver,
    run_plain: Run,
    run_pool: Run,
    *,
    first: int,
    last: int,
    repeats: int,
) -> Grown:
    """Rounds of all slots but the pool's last over windows that grow from `first` to `last`, on plain tensors and in
    the pool in turn. In the last slot a request ends beside them, half way."""
    grown = Grown()
    slots = len(pool.stats().by_slot) - 1
    ending, half = slots, (first + last) // 2
    before = driver.elsewhere.copy()
    for _ in range(repeats):
        rounds = []
        warm(run_plain, first)
        for at in range(first, last):
            start = time.perf_counter()
            run_plain(at)
            rounds.append(time.perf_counter() - start)
        grown.plain.append(rounds)
        for s in range(slots):
            pool.commit(s, first)
            pool.release(s, first)
            grown.too_many_bytes += beyond(pool, pool.layout, s, first)
        stock.thread.wait_until_idle()
        pool.commit(ending, last)
        for s in range(slots):
            pool.commit(s, first)
        warm(run_pool, first)
        rounds, commits = [], []
        earlier = driver.here.copy()
        for at in range(first, last):
            start = time.perf_counter()
            if at in (half, half + 1):  # of earlier returned pages, the second would unmap those of the first
                pool.release(ending, first if at == half else 0)
                grown.slowest_release = max(grown.slowest_release, time.perf_counter() - start)
            released = time.perf_counter()
            for s in range(slots):
                pool.commit(s, at + 1)
            commits.append(time.perf_counter() - released)
            run_pool(at)
            rounds.append(time.perf_counter() - start)
        grown.commits.append(commits)
        grown.in_rounds += driver.here - earlier
        grown.pool.append(rounds)
        for s in range(slots):
            grown.too_many_bytes += beyond(pool, pool.layout, s, min(last + MARGIN, pool.window(s)))
        grown.too_many_bytes += pool.committed_bytes(ending) > 0
    for s in range(slots):
        pool.release(s, last)
        grown.too_many_bytes += beyond(pool, pool.layout, s, last)
    pool.check_integrity(deep=True)
    stock.thread.wait_until_idle()
    grown.by_helper = driver.elsewhere - before
    return grown


def compute(program: CudaProgram, base: NDArray[np.uint64], at: int) -> None:
    """A round of all slots whose rows lie at `at`."""
    batch = pack([SlotRows(s, at, [s + 1], logits=[0]) for s in range(SLOTS)])
    program.run_and_sample(batch, base, [GREEDY] * SLOTS)


def pool_against_plain(shapes: list[str]) -> bool:
    """The stage `pool`: bits, fixed and growing round times of each shape. Whether all was right."""
    why = supported(0)
    if why is not None:
        row(f"no device pages: {why}")
        return False
    torch.cuda.synchronize()
    driver = CountedDriver(CudaDriver(0, torch.cuda.current_stream().cuda_stream))
    stock = PageStock(driver)
    ok = True
    for shape in shapes:
        config = SHAPES[shape]
        program = build(config, SLOTS)
        plain = Slots(config, SLOTS, GROWN_TO + 8)
        layout = llama.kv_layout(config)
        pool = KvPool(layout, [16384] * (SLOTS + 1), margin_rows=MARGIN, ranges=device_ranges(stock))
        tensors = range(len(layout.tensors))
        for s in range(SLOTS):
            pool.commit(s, GROWN_TO)
            for t in tensors:
                at_address(pool.base(s, t), GROWN_TO * config.attention.kv_width).copy_(
                    plain.kv[s, t, :GROWN_TO].flatten()
                )
        pooled = Slots.__new__(Slots)
        pooled.base = np.array([[pool.base(s, t) for t in tensors] for s in range(SLOTS)], np.uint64)
        batch = pack([SlotRows(s, 1023, [s + 1], logits=[0]) for s in range(SLOTS)])
        program.use_graphs = False
        same = np.array_equal(program.run(batch, plain.base).copy(), program.run(batch, pooled.base))
        ratios = []
        for rows in (1024, GROWN_TO):
            times: dict[str, list[float]] = {"plain": [], "pool": []}
            for _ in range(5):
                for name, at in (("plain", plain), ("pool", pooled)):
                    times[name].append(replay_ms(decode_graph(program, at, SLOTS, rows, config.vocab), 20))
            ratios.append(statistics.median(times["plain"]) / statistics.median(times["pool"]))
        program.use_graphs = True
        # One program for both: two copies of the weights do not stream alike.
        run_plain, run_pool = partial(compute, program, plain.base), partial(compute, program, pooled.base)
        with switching_as_served():
            grown = grow(pool, stock, driver, run_plain, run_pool, first=GROWN_FROM, last=GROWN_TO, repeats=REPEATS)
        ok &= same and grown.right
        row(
            f"pool {shape} {config.layers} layers, {SLOTS} requests: bits {'equal' if same else 'DIFFER'}, plain/pool "
            f"{ratios[0]:.4f} at 1,024 rows and {ratios[1]:.4f} at {GROWN_TO:,}; {grown}"
        )
        pool.close()
        stock.trim()
        del program, plain, pool, pooled
        torch.cuda.empty_cache()
    return ok
