"""Up to when the ledger believes the clock: rows age by a wall clock that agrees with the steady one.

A wall clock that is set years ahead would make every row too old at once. So a jump is not believed before the clock
has agreed with the steady one for a day of running; meanwhile rows age by the time that really passed. A box that was
off for longer than that looks the same: its rows go a day later.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE_S = 86_400.0
"""A wall clock that is off by less is believed: rows are kept for days."""

SETTLED_S = 86_400.0
"""How long a clock that jumped must agree with the steady one before it is believed."""


@dataclass(slots=True)
class RetentionClock:
    """`believed` is the Unix time up to which rows may age, `steady` the steady clock's reading then. Times in
    seconds."""

    believed: float
    steady: float
    _doubted_offset: float | None = None
    _doubted_since: float = 0.0

    def now(self, wall: float, steady: float) -> float:
        """The time by which rows are too old or not, no later than `wall`; `wall` and `steady` are read together."""
        expected = self.believed + (steady - self.steady)
        if abs(wall - expected) <= TOLERANCE_S or self._settled(wall, steady):
            expected = wall
            self._doubted_offset = None
        self.believed, self.steady = expected, steady
        return min(expected, wall)

    def _settled(self, wall: float, steady: float) -> bool:
        """Whether the clock that is doubted has agreed with the steady one for long enough."""
        offset = wall - steady
        if self._doubted_offset is None or abs(offset - self._doubted_offset) > TOLERANCE_S:
            self._doubted_offset, self._doubted_since = offset, steady
        return steady - self._doubted_since >= SETTLED_S
