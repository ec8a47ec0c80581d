"""Which clock rows age by: one that jumped is not believed before it has proved itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from engine.process.ledger.reader import LedgerReader, Search
from engine.process.ledger.retention import RetentionClock
from engine.process.ledger.store import LedgerStore
from engine.process.ledger.writer import DAY_S, Ledger
from tests.engine.process.ledger.rows import row

HOUR, YEAR = 3600.0, 365 * DAY_S
START = 1_000_000_000.0

Event = tuple[float, float, float]
"""Seconds that pass, by how much the wall clock is set, and the time that rows then age by, after the start."""

HISTORIES: dict[str, list[Event]] = {
    "a clock that runs": [(HOUR, 0, HOUR), (HOUR, 0, 2 * HOUR)],
    "a small correction": [(HOUR, 10, HOUR + 10), (HOUR, -20, 2 * HOUR - 10)],
    "summer time set by hand": [(HOUR, HOUR, 2 * HOUR)],
    "years ahead, and set right": [(HOUR, 3 * YEAR, HOUR), (HOUR, 0, 2 * HOUR), (HOUR, -3 * YEAR, 3 * HOUR)],
    "years ahead, and that is right": [
        *((HOUR, 3 * YEAR if hour == 1 else 0, hour * HOUR) for hour in range(1, 25)),
        (HOUR, 0, 25 * HOUR + 3 * YEAR),
        (HOUR, 0, 26 * HOUR + 3 * YEAR),
    ],
    "a second jump begins the doubt anew": [
        (HOUR, 3 * YEAR, HOUR),
        (23 * HOUR, YEAR, 24 * HOUR),
        (23 * HOUR, 0, 47 * HOUR),
        (HOUR, 0, 48 * HOUR + 4 * YEAR),
    ],
    "years back": [(HOUR, -3 * YEAR, HOUR - 3 * YEAR), (HOUR, 3 * YEAR, 2 * HOUR)],
    "years back, and that is right": [(HOUR, -YEAR, HOUR - YEAR), (DAY_S, 0, HOUR + DAY_S - YEAR)],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_rows_age_by(name: str) -> None:
    clock = RetentionClock(START, steady=50.0)
    wall, steady = START, 50.0
    for passed, set_by, expected in HISTORIES[name]:
        wall, steady = wall + passed + set_by, steady + passed
        assert clock.now(wall, steady) == pytest.approx(START + expected)


class Box:
    """A ledger's writer without its thread, and both clocks of its box."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wall = START
        self.steady = 0.0
        self.ledger: Ledger

    def start(self) -> None:
        """A new process: its steady clock begins anew, as after a boot."""
        self.steady = 0.0
        self.ledger = Ledger(self.path, days=30, rows=1000, wall=lambda: self.wall, steady=lambda: self.steady)

    def request(self, number: int) -> None:
        self.ledger.add(row(number, finished_at=self.wall))

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds
        self.ledger._prune_at = 0.0
        self.ledger._write_all()

    def stop(self) -> None:
        self.ledger._reopen_later()

    def kept(self) -> list[str]:
        return [found.id for found in LedgerReader(self.path).page(Search(limit=100)).rows[::-1]]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box(tmp_path / "ledger.sqlite")
    made.start()
    made.request(1)
    made.passes(HOUR)
    assert made.kept() == ["req-1"]
    return made


def jumped(box: Box) -> None:
    box.wall += 3 * YEAR


def jumped_and_served(box: Box) -> None:
    jumped(box)
    box.request(2)
    box.passes(HOUR)


def restarted_after_a_jump(box: Box) -> None:
    jumped_and_served(box)
    box.stop()
    box.start()
    box.passes(HOUR)


def jumped_while_it_was_off(box: Box) -> None:
    box.stop()
    jumped(box)
    box.start()
    box.request(2)
    box.passes(HOUR)
    box.stop()
    box.start()


@pytest.mark.parametrize("happens", [jumped, jumped_and_served, restarted_after_a_jump, jumped_while_it_was_off])
def test_a_jump_deletes_no_row(happens: Callable[[Box], None], box: Box) -> None:
    happens(box)
    box.passes(HOUR)
    assert box.kept()[0] == "req-1"
    box.wall -= 3 * YEAR
    box.passes(HOUR)
    assert box.kept()[0] == "req-1"


def test_rows_go_when_they_are_too_old(box: Box) -> None:
    box.passes(29 * DAY_S)
    box.request(2)
    box.passes(HOUR)
    assert box.kept() == ["req-1", "req-2"]
    box.passes(DAY_S)
    assert box.kept() == ["req-2"]


def test_a_box_that_was_off_for_long_drops_its_rows_a_day_later(box: Box) -> None:
    box.stop()
    box.wall += 60 * DAY_S
    box.start()
    for _ in range(24):
        box.passes(HOUR)
        assert box.kept() == ["req-1"]
    box.passes(HOUR)
    assert box.kept() == []


def test_a_ledger_of_an_older_version_begins_with_its_last_row(tmp_path: Path) -> None:
    with closing(LedgerStore(tmp_path / "ledger.sqlite")) as store:
        assert store.believed() is None
        store.append([row(1), row(2)])
        assert store.believed() == row(2).finished_at
        store.prune(before=0.0, rows=10, believed=5.0)
        assert store.believed() == 5.0
