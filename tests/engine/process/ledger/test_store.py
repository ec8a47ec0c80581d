"""The ledger's file: what is written is read again, what is too old goes, and what is no ledger is left alone."""

from __future__ import annotations

import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.process.ledger.reader import LedgerReader, Search
from engine.process.ledger.store import SCHEMA, LedgerStore, LedgerUnusable
from engine.protocol import Finish
from tests.engine.process.ledger.rows import row


def ids(path: Path) -> list[str]:
    return [kept.id for kept in LedgerReader(path).page(Search(limit=500)).rows]


def test_every_field_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    refused = row(
        2,
        slot=None,
        max_tokens=None,
        finish=Finish.REFUSED,
        reason="the queue is full: 'quoted' ; -- 日本",
        queue_s=None,
        ttft_s=None,
        prefill_s=None,
        decode_s=None,
        tok_s=None,
        worst_gap_s=None,
        route=None,
    )
    with closing(LedgerStore(path)) as store:
        store.append([row(1), refused])
        assert LedgerReader(path).find("req-1") == row(1)
        assert LedgerReader(path).page(Search()).rows == [refused, row(1)]
    with closing(LedgerStore(path)) as again:
        again.append([row(3)])
    assert ids(path) == ["req-3", "req-2", "req-1"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(max_examples=12, deadline=None)
@given(
    ends=st.lists(st.integers(0, 50), max_size=30),
    before=st.integers(0, 50),
    keep=st.integers(1, 40),
)
def test_what_is_kept_is_the_newest_and_young_enough(ends: list[int], before: int, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(LedgerStore(Path(folder) / "ledger.sqlite")) as store:
        store.append([row(number, finished_at=float(end)) for number, end in enumerate(ends)])
        gone = store.prune(before=float(before), rows=keep, believed=50.0)
        kept = [found[0] for found in store._connection.execute("SELECT id FROM requests ORDER BY seq")]
    young = [f"req-{number}" for number, end in enumerate(ends) if end >= before]
    assert kept == young[-keep:]
    assert gone == len(ends) - len(kept)


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(LedgerStore(path)) as store:
        with pytest.raises(LedgerUnusable):
            store.append([row(1), row(2, client=None)])
        store.append([row(3)])
    assert ids(path) == ["req-3"]


def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(LedgerStore(path)) as store:
        store.append([row(1)])
        store._connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()
    with pytest.raises(LedgerUnusable, match=r"newer version \(its schema is 2, this one knows 1\)"):
        LedgerStore(path)
    with pytest.raises(LedgerUnusable, match="newer version"):
        LedgerReader(path).find("req-1")
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "zeroed pages", "another database", "folder"])
def test_what_is_no_ledger_is_said_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger.sqlite"
    if damage == "text":
        path.write_text("this is no database, however long one looks at it\n" * 40)
    elif damage == "another database":
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE things (a)")
    elif damage == "folder":
        path.mkdir()
    else:
        with closing(LedgerStore(path)) as store:
            store.append([row(number) for number in range(200)])
        body = path.read_bytes()
        path.write_bytes(body[:4096] + b"\x5a" * (len(body) - 4096))
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(LedgerUnusable, match=r"ledger\.sqlite"):
        LedgerReader(path).page(Search())
    with pytest.raises(LedgerUnusable, match=r"ledger\.sqlite"), closing(LedgerStore(path)) as store:
        store.append([row(1)])
    if damage == "text":
        assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerUnusable, match="cannot be used: File exists"):
        LedgerStore(tmp_path / "file" / "ledger.sqlite")
