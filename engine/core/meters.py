"""What the engine measures of its own pace: rounds by how many slots shared them, pauses between tokens, waits.

The engine thread alone writes; anyone may read a `view`, which may lie one observation behind itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from engine.api import HistogramView, MetersView
from engine.protocol import RoundStat

RECENT_ROUNDS = 256
"""Rounds of a size over which its 95th percentile is taken."""

ROUND_BOUNDS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
GAP_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WAIT_BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class FixedHistogram:
    """Counts observations in fixed buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(self._counts), self._total)


class RoundMeter:
    """The rounds of one size: how many slots decoded together."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.seconds = FixedHistogram(ROUND_BOUNDS_S)
        self.count = 0
        self._tokens = 0
        self._total_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self._p95_at = 0
        self._p95_s = 0.0

    def ran(self, seconds: float, tokens: int) -> None:
        self.count += 1
        self._tokens += tokens
        self._total_s += seconds
        self._recent.append(seconds)
        self.seconds.observe(seconds)

    def stat(self) -> RoundStat:
        """Engine thread only: it sorts the last rounds where new ones came."""
        if self._p95_at != self.count:
            self._p95_at = self.count
            ordered = sorted(self._recent)
            self._p95_s = ordered[-(-19 * len(ordered) // 20) - 1]
        return RoundStat(
            rows=self.rows,
            rounds=self.count,
            mean_ms=1000 * self._total_s / self.count,
            p95_ms=1000 * self._p95_s,
            tokens_per_round=self._tokens / self.count,
            ms_total=1000 * self._total_s,
        )


class Meters:
    """One engine's meters."""

    def __init__(self) -> None:
        self.queue = FixedHistogram(WAIT_BOUNDS_S)
        self.gaps = FixedHistogram(GAP_BOUNDS_S)
        self._rounds: dict[int, RoundMeter] = {}

    def round_ran(self, rows: int, seconds: float, tokens: int) -> None:
        """A round over `rows` slots took so long and gave so many tokens."""
        meter = self._rounds.get(rows)
        if meter is None:
            meter = self._rounds[rows] = RoundMeter(rows)
        meter.ran(seconds, tokens)

    def round_counts(self) -> dict[int, int]:
        """Rounds by how many slots decoded together, ascending."""
        return {rows: self._rounds[rows].count for rows in sorted(self._rounds)}

    def round_stats(self) -> list[RoundStat]:
        """One entry for each number of slots that ever decoded together, ascending. Engine thread only."""
        return [self._rounds[rows].stat() for rows in sorted(self._rounds)]

    def view(self) -> MetersView:
        meters = sorted(self._rounds.copy().items())
        return MetersView(
            self.queue.view(), self.gaps.view(), tuple((rows, meter.seconds.view()) for rows, meter in meters)
        )
