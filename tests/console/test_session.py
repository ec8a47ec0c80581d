"""What is kept of fetched ledger and log pages, what is fetched next, and the loops that fetch it."""

from __future__ import annotations

import asyncio

from console.session.fetched import (
    LINES_KEPT,
    NOTHING_FETCHED,
    ROWS_KEPT,
    Fetched,
    FetchedLog,
    FetchedRequests,
    FetchUpdate,
    LogFailed,
    LogReceived,
    RequestReceived,
    RequestsFailed,
    RequestsReceived,
    RequestsWanted,
    requests_wanted,
    with_lines,
    with_newest,
    with_older,
    with_update,
)
from console.session.session import EngineSession
from engine.protocol import LogPage, RequestsPage
from tests.support.fake_admin import ledger_row, log_line
from tests.support.fake_engine_api import FakeEngineApi


def page(numbers: range, *, following: str | None = None, total: int = 240) -> RequestsPage:
    return RequestsPage(rows=[ledger_row(number) for number in numbers], next=following, total=total)


def ids(fetched: FetchedRequests) -> list[int]:
    return [int(row.id.removeprefix("req-"), 16) - 0x6000 for row in fetched.rows]


def test_new_rows_stand_before_those_held() -> None:
    fetched = with_newest(FetchedRequests(), "", 1, page(range(9, 4, -1), following="a"))
    fetched = with_older(fetched, "", "a", page(range(4, 1, -1), following="b"))
    fetched = with_newest(fetched, "", 2, page(range(11, 6, -1), following="other"))
    assert ids(fetched) == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert (fetched.next, fetched.stamp) == ("b", 2)


def test_where_the_newest_page_does_not_join_what_is_held_it_replaces_it() -> None:
    fetched = with_newest(FetchedRequests(), "", 1, page(range(9, 4, -1), following="a"))
    fetched = with_newest(fetched, "", 2, page(range(29, 24, -1), following="z"))
    assert ids(fetched) == [29, 28, 27, 26, 25]
    assert fetched.next == "z"


def test_another_search_begins_anew() -> None:
    fetched = with_newest(FetchedRequests(), "", 1, page(range(9, 4, -1)))
    fetched = with_newest(fetched, "curl", 1, page(range(9, 8, -1), total=1))
    assert (ids(fetched), fetched.query, fetched.total) == ([9], "curl", 1)


def test_an_older_page_that_follows_something_else_is_dropped() -> None:
    fetched = with_newest(FetchedRequests(), "", 1, page(range(9, 4, -1), following="a"))
    assert with_older(fetched, "", "other", page(range(4, 1, -1))) is fetched
    assert with_older(fetched, "curl", "a", page(range(4, 1, -1))) is fetched


def test_a_long_list_is_bounded_and_says_that_there_is_no_more() -> None:
    fetched = with_newest(FetchedRequests(), "", 1, page(range(9, 4, -1), following="a"))
    fetched = with_older(fetched, "", "a", page(range(ROWS_KEPT + 9), following="b"))
    assert len(fetched.rows) == ROWS_KEPT
    assert fetched.next is None


def test_one_id_may_come_twice() -> None:
    first, second = ledger_row(1), ledger_row(2)
    twin = RequestsPage(rows=[second, first], next=None, total=2)
    fetched = with_newest(FetchedRequests(rows=(first,), total=1), "", 1, twin)
    assert ids(fetched) == [2, 1]


def test_the_ledger_is_asked_only_when_something_changed() -> None:
    assert requests_wanted(FetchedRequests(), "", 7) == RequestsWanted("", 7, newest=True)
    held = with_newest(FetchedRequests(), "", 7, page(range(9, 4, -1), following="a"))
    assert requests_wanted(held, "", 7) is None
    assert requests_wanted(held, "", 8) == RequestsWanted("", 8, newest=True)
    assert requests_wanted(held, "curl", 7, at_end=True) == RequestsWanted("curl", 7, newest=True)
    assert requests_wanted(held, "", 7, at_end=True) == RequestsWanted("", 7, before="a")
    assert requests_wanted(held, "", 7, opened="req-1") == RequestsWanted("", 7, opened="req-1")
    missed = with_update(Fetched(held), RequestsFailed("gone")).requests
    assert missed.rows == held.rows
    assert requests_wanted(missed, "", 7) == RequestsWanted("", 7, newest=True)


def test_log_lines_follow_one_another_and_old_ones_go() -> None:
    fetched = with_lines(FetchedLog(), 0, LogPage(lines=[log_line(seq) for seq in range(1, 4)], next=3))
    fetched = with_lines(fetched, 3, LogPage(lines=[log_line(4)], next=4))
    assert [line.seq for line in fetched.lines] == [1, 2, 3, 4]
    assert with_lines(fetched, 3, LogPage(lines=[log_line(4)], next=4)) is fetched
    many = LogPage(lines=[log_line(seq) for seq in range(5, LINES_KEPT + 9)], next=LINES_KEPT + 8)
    fetched = with_lines(fetched, 4, many)
    assert len(fetched.lines) == LINES_KEPT
    assert fetched.lines[-1].seq == LINES_KEPT + 8


def test_an_engine_that_started_anew_starts_the_log_anew() -> None:
    fetched = with_lines(FetchedLog(), 0, LogPage(lines=[log_line(1)], next=900))
    fetched = with_lines(fetched, 900, LogPage(lines=[], next=3))
    assert (fetched.lines, fetched.next) == ((), 0)


def test_trouble_stays_until_an_answer_comes() -> None:
    fetched = with_update(NOTHING_FETCHED, LogFailed("gone"))
    assert fetched.log.trouble == "gone"
    assert with_update(fetched, LogReceived(0, LogPage(lines=[], next=0))).log.trouble is None


def brought(api: FakeEngineApi, want: RequestsWanted | None, after: int | None = None) -> list[FetchUpdate]:
    """What both loops report at once."""

    async def listen() -> list[FetchUpdate]:
        came: list[FetchUpdate] = []
        session = EngineSession(api, fetch_s=60.0)
        loops = [
            asyncio.ensure_future(session.fetch_requests(lambda: want, came.append)),
            asyncio.ensure_future(session.fetch_log(lambda: after, came.append)),
        ]
        await asyncio.sleep(0.01)
        for loop in loops:
            loop.cancel()
        return came

    return asyncio.run(listen())


def test_nothing_wanted_is_nothing_asked() -> None:
    api = FakeEngineApi()
    assert brought(api, None) == []
    assert api.asked == []


def test_each_want_is_one_question() -> None:
    api = FakeEngineApi()
    came = brought(api, RequestsWanted("curl", 3, newest=True, before="req-600c", opened="req-6007"), after=100)
    assert api.asked == [
        "/admin/requests?q=curl&limit=50",
        "/admin/requests?q=curl&limit=50&before=req-600c",
        "/admin/requests/req-6007",
        "/admin/log?after=100",
    ]
    newest, older, one, log = came
    assert isinstance(newest, RequestsReceived)
    assert not newest.older
    assert isinstance(older, RequestsReceived)
    assert older.older
    assert [row.id for row in older.page.rows] == ["req-6007", "req-6002"]
    assert one == RequestReceived(ledger_row(7))
    assert isinstance(log, LogReceived)
    assert [line.seq for line in log.page.lines] == list(range(101, 121))


def test_a_request_that_still_runs_is_no_trouble() -> None:
    assert brought(FakeEngineApi(), RequestsWanted("", 0, opened="req-7f3a")) == []


def test_what_fails_is_told_in_words() -> None:
    assert brought(FakeEngineApi(trouble="no answer within 2 s"), RequestsWanted("", 0, newest=True), after=0) == [
        RequestsFailed("the ledger cannot be read: no answer within 2 s"),
        LogFailed("the log cannot be read: no answer within 2 s"),
    ]
    lacks = FakeEngineApi(lacks="this engine has no ledger")
    assert brought(lacks, RequestsWanted("", 0, newest=True)) == [RequestsFailed("this engine has no ledger")]
