"""Reading the ledger: pages that neither miss nor repeat, searches, totals, and no engine needed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.process.ledger import reader as reader_module
from engine.process.ledger.reader import LedgerReader, Search, TookTooLong, UnknownRow
from engine.process.ledger.store import LedgerStore
from engine.process.ledger.usage import UsageBy, usage
from engine.protocol import Finish, LedgerRow
from tests.engine.process.ledger.rows import row

NAMES = ["curl", "open-webui", "100%", "a_b", "axb", "日本", "a\0Zero"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[LedgerReader, list[LedgerRow]]:
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    rows = [
        row(
            number,
            client=NAMES[number % len(NAMES)],
            finish=list(Finish)[number % len(Finish)],
            reason="no slot came free" if number % 4 == 0 else None,
        )
        for number in range(97)
    ]
    with closing(LedgerStore(path)) as store:
        store.append(rows)
    return LedgerReader(path), rows


@settings(max_examples=40, deadline=None)
@given(
    limit=st.integers(1, 40),
    q=st.sampled_from([None, "REQ-1", "%", "_", "a_b", "slot", "日本", "nothing has this", "\\", "\0", "zERO"]),
    client=st.sampled_from([None, *NAMES]),
    finish=st.sampled_from([None, *Finish]),
)
def test_pages_cover_what_fits_once_newest_first(
    many: tuple[LedgerReader, list[LedgerRow]],
    limit: int,
    q: str | None,
    client: str | None,
    finish: Finish | None,
) -> None:
    reader, rows = many
    wanted = [
        kept
        for kept in reversed(rows)
        if (
            q is None
            or any(q.lower() in (text or "").lower() for text in (kept.id, kept.client, kept.model, kept.reason))
        )
        and client in (None, kept.client)
        and finish in (None, kept.finish)
    ]
    seen: list[LedgerRow] = []
    before = None
    while True:
        page = reader.page(Search(limit=limit, before=before, q=q, client=client, finish=finish))
        assert page.total == len(wanted)
        assert len(page.rows) <= limit
        seen += page.rows
        before = page.next
        if before is None:
            break
        assert before == page.rows[-1].id
    assert seen == wanted


def test_a_page_after_a_row_that_is_not_there(many: tuple[LedgerReader, list[LedgerRow]]) -> None:
    with pytest.raises(UnknownRow):
        many[0].page(Search(before="req-none"))
    assert many[0].find("req-none") is None


def test_an_id_that_comes_twice_is_its_newest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(LedgerStore(path)) as store:
        store.append([row(1, client="first"), row(1, client="second")])
    found = LedgerReader(path).find("req-1")
    assert found is not None
    assert found.client == "second"


def test_pages_go_on_where_an_id_comes_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    rows = [row(number % 3, client=str(number)) for number in range(9)]
    with closing(LedgerStore(path)) as store:
        store.append(rows)
    seen: list[LedgerRow] = []
    before = None
    for _ in range(9):
        page = LedgerReader(path).page(Search(limit=1, before=before))
        seen += page.rows
        before = page.next
    assert seen == rows[::-1]
    assert before is None


def test_no_file_and_an_empty_one_are_an_empty_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for _ in range(2):
        assert LedgerReader(path).page(Search()).rows == []
        assert LedgerReader(path).find("x") is None
        assert usage(LedgerReader(path), "l", by=UsageBy.DAY, since=None).total.requests == 0
        path.touch()


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SQLite answers another user there: no room for the file that readers and the writer share."""
    path = tmp_path / "ledger.sqlite"
    with closing(LedgerStore(path)) as store:
        store.append([row(1)])
    real = sqlite3.connect

    class Unshared(sqlite3.Connection):
        def execute(self, *given: object) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("unable to open database file")

    def connect(address: str, **options: object) -> sqlite3.Connection:
        factory = sqlite3.Connection if "immutable" in address else Unshared
        return real(address, factory=factory, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(reader_module.sqlite3, "connect", connect)
    assert LedgerReader(path).find("req-1") == row(1)


def test_a_search_without_an_end_is_given_up(
    many: tuple[LedgerReader, list[LedgerRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "STEPS", 1)
    with pytest.raises(TookTooLong, match="for 0 s"):
        LedgerReader(many[0]._path, limit_s=0.0).page(Search(q="x"))


def test_totals_by_client_day_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    day = 86_400.0
    with closing(LedgerStore(path)) as store:
        store.append(
            [
                row(1, finished_at=day, ttft_s=1.0, total_s=3.0, queue_s=0.5),
                row(2, finished_at=2 * day, ttft_s=3.0, total_s=2.0, queue_s=0.0),
                row(3, finished_at=2 * day, ttft_s=8.0, total_s=4.0, queue_s=1.0, client="aider"),
                row(4, finished_at=2 * day, ttft_s=None, queue_s=None, finish=Finish.REFUSED, client="aider"),
                row(5, finished_at=2 * day, ttft_s=None, queue_s=None, finish=Finish.TIMEOUT, client="aider"),
                row(6, finished_at=2 * day, ttft_s=2.0, total_s=1.0, queue_s=0.0, finish=Finish.ERROR, model="n"),
            ]
        )
    reader = LedgerReader(path)
    report = usage(reader, "l", by=UsageBy.CLIENT, since=None)
    assert (report.total.requests, report.total.prompt_tokens, report.total.completion_tokens) == (6, 60, 120)
    assert (report.total.errors, report.total.refused, report.total.cached_tokens) == (2, 1, 24)
    assert report.total.served_s == pytest.approx(2.5 + 2 + 3 + 1)
    assert report.total.ttft_median_s == 2.5
    aider, curl = report.groups
    assert (aider.key, aider.totals.requests, aider.totals.ttft_median_s) == ("aider", 3, 8.0)
    assert (curl.key, curl.totals.requests, curl.totals.ttft_median_s) == ("curl", 3, 2.0)
    young = usage(reader, "l", by=UsageBy.MODEL, since=1.5 * day)
    assert [(group.key, group.totals.requests) for group in young.groups] == [("m", 4), ("n", 1)]
    assert young.total.requests == 5
    days = usage(reader, "l", by=UsageBy.DAY, since=None)
    assert [group.totals.requests for group in days.groups] == [1, 5]
    assert all(len(group.key) == len("1970-01-02") for group in days.groups)
    assert usage(reader, "l", by=None, since=3 * day).total.requests == 0
