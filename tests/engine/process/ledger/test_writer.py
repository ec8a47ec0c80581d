"""The ledger's writer: it never holds anybody up, outlives its file, and a kill takes nothing that was committed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.process.ledger import writer
from engine.process.ledger.reader import LedgerReader, Search
from engine.process.ledger.store import SCHEMA, LedgerStore
from engine.process.ledger.writer import DAY_S, Ledger
from tests.engine.process.ledger.rows import row
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until


@contextmanager
def running(path: Path, **options: object) -> Iterator[Ledger]:
    ledger = Ledger(path, **{"days": 10**6, "rows": 1000, "retry_s": 0.02, **options})  # type: ignore[arg-type]
    ledger.start()
    try:
        yield ledger
    finally:
        ledger.close(10)


def ids(path: Path) -> list[str]:
    return [kept.id for kept in LedgerReader(path).page(Search(limit=500)).rows]


def test_rows_arrive_in_order_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with running(path) as ledger:
        for number in range(700):
            ledger.add(row(number))
        assert wait_until(lambda: ledger.state().written == 700)
        ledger.add(row(700))
    state = ledger.state()
    assert (state.enabled, state.written, state.dropped, state.defect) == (True, 701, 0, None)
    assert ids(path)[:3] == ["req-700", "req-699", "req-698"]
    assert LedgerReader(path).page(Search()).total == 701


def test_a_clock_that_is_set_back_keeps_no_row_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PRUNE_EVERY_S", 0.0)
    path = tmp_path / "ledger.sqlite"
    wall, steady = [1_000_000.0], [0.0]
    with running(path, days=30, wall=lambda: wall[0], steady=lambda: steady[0]) as ledger:
        ledger.add(row(1))
        assert wait_until(lambda: ids(path) == ["req-1"])
        wall[0] -= DAY_S / 2
        ledger.add(row(2))
        assert wait_until(lambda: ids(path) == ["req-2", "req-1"])
        wall[0] += 31 * DAY_S
        steady[0] += 31 * DAY_S
        assert wait_until(lambda: not ids(path))


def test_an_old_row_and_one_too_many_go(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    now = 1_000_000.0 + 30 * DAY_S
    with running(path, days=30, rows=3, wall=lambda: now) as ledger:
        for number in (-5, -4, 1, 2, 3, 4):
            ledger.add(row(number))
        assert wait_until(lambda: ledger.state().written == 6)
    assert ids(path) == ["req-4", "req-3", "req-2"]


def test_a_full_queue_drops_and_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", days=1, rows=10, queue_limit=3)
    for number in range(8):
        ledger.add(row(number))
    assert ledger.state().dropped == 5


def test_adding_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, reached = threading.Event(), threading.Event()
    append = LedgerStore.append

    def slow(self: LedgerStore, rows: list[object]) -> None:
        reached.set()
        assert held.wait(LONG_S)
        append(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(LedgerStore, "append", slow)
    with running(tmp_path / "ledger.sqlite", queue_limit=4) as ledger:
        ledger.add(row(0))
        assert reached.wait(LONG_S)
        for number in range(1, 10):
            ledger.add(row(number))
        assert (ledger.state().written, ledger.state().dropped) == (0, 6)
        held.set()
    assert ledger.state().written == 4


@pytest.mark.parametrize("damage", ["text", "newer", "folder"])
def test_a_file_that_cannot_be_used_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    caplog.set_level(logging.INFO, "tandem.ledger")
    path = tmp_path / "ledger.sqlite"
    if damage == "text":
        path.write_text("no database\n" * 100)
    elif damage == "folder":
        path.mkdir()
    else:
        store = LedgerStore(path)
        store._connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        store.close()
    with running(path) as ledger:
        ledger.add(row(1))
        assert wait_until(lambda: ledger.state().defect is not None)
        threading.Event().wait(0.1)
        said = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(said) == 1
        assert str(path) in said[0].getMessage()
        assert "serving goes on" in said[0].getMessage()
        path.rename(tmp_path / "aside")
        assert wait_until(lambda: ledger.state().written == 1 and ledger.state().defect is None)
    assert caplog.records[-1].getMessage() == "the ledger is written again"
    assert ids(path) == ["req-1"]


def test_a_full_disk_loses_nothing_that_the_queue_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True]
    append = LedgerStore.append

    def on_full_disk(self: LedgerStore, rows: list[object]) -> None:
        if full[0]:
            # The file may not grow any more: what SQLite calls a full disk.
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            self._connection.execute(f"PRAGMA max_page_count = {pages}")
            rows = [row(number, reason="x" * 5000) for number in range(50)]
        append(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(LedgerStore, "append", on_full_disk)
    path = tmp_path / "ledger.sqlite"
    with running(path) as ledger:
        ledger.add(row(1))
        assert wait_until(lambda: ledger.state().defect is not None)
        assert "full" in (ledger.state().defect or "")
        full[0] = False
        assert wait_until(lambda: ledger.state().written == 1)
    assert ids(path) == ["req-1"]


def test_an_engine_that_ends_with_an_unusable_ledger_counts_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.sqlite"
    path.mkdir()
    with running(path) as ledger:
        ledger.add(row(1))
        ledger.add(row(2))
    assert (ledger.state().written, ledger.state().dropped) == (0, 2)
    assert "misses 2 requests" in caplog.text


def test_a_row_that_cannot_be_written_does_not_end_the_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.sqlite"
    with running(path) as ledger:
        ledger.add(row(1, max_tokens=1 << 80))
        assert wait_until(lambda: ledger.state().dropped == 1)
        ledger.add(row(2))
        assert wait_until(lambda: ledger.state().written == 1)
    assert "1 requests are missing in the ledger: OverflowError" in caplog.text
    assert ids(path) == ["req-2"]


def test_no_row_goes_into_a_log_that_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with running(path) as ledger:
        ledger.add(row(1))
        assert wait_until(lambda: ledger.state().written == 1)
        for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
            (tmp_path / name).unlink()
        ledger.add(row(2))
        assert wait_until(lambda: ledger.state().written == 2)
        assert ids(path) == ["req-2", "req-1"]


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with running(path) as ledger:
        ledger.add(row(1))
        assert wait_until(lambda: ledger.state().written == 1)
        for name in tmp_path.iterdir():
            name.rename(tmp_path / f"old-{name.name}")
        ledger.add(row(2))
        assert wait_until(lambda: ledger.state().written == 2)
    assert ids(path) == ["req-2"]


KILLED = """
import sys, time
from pathlib import Path
from engine.process.ledger.writer import Ledger
from tests.engine.process.ledger.rows import row
ledger = Ledger(Path(sys.argv[1]), days=10**6, rows=10**6)
ledger.start()
number = 0
while True:
    ledger.add(row(number))
    number += 1
    if number % 50 == 0:
        print(ledger.state().written, flush=True)
        time.sleep(0.005)
"""


def test_a_kill_takes_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    ) as process:
        assert process.stdout is not None
        written = 0
        while written < 1000:
            written = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    total = LedgerReader(path).page(Search()).total
    assert total >= written
    with running(path, rows=10**6) as ledger:
        ledger.add(row(-1))
        assert wait_until(lambda: ledger.state().written == 1)
    assert LedgerReader(path).page(Search()).total == total + 1
    kept = LedgerReader(path).page(Search(limit=500)).rows
    assert [one.id for one in kept[1:]] == [f"req-{number}" for number in range(total - 1, total - 500, -1)]
