"""What is kept of the ledger and the log as pages come, and what is asked for next."""

from __future__ import annotations

import asyncio

from console.feeding import Feeding
from console.feeds import (
    LINES_KEPT,
    NOTHING_FED,
    ROWS_KEPT,
    Came,
    Fed,
    LogCame,
    LogFed,
    LogMissed,
    RequestCame,
    RequestsCame,
    RequestsFed,
    RequestsMissed,
    RequestsWanted,
    folded,
    requests_wanted,
    with_lines,
    with_newest,
    with_older,
)
from engine.protocol import LogPage, RequestsPage
from tests.support.fake_admin import ledger_row, log_line
from tests.support.fake_desk import FakeDesk


def page(numbers: range, *, following: str | None = None, total: int = 240) -> RequestsPage:
    return RequestsPage(rows=[ledger_row(number) for number in numbers], next=following, total=total)


def ids(fed: RequestsFed) -> list[int]:
    return [int(row.id.removeprefix("req-"), 16) - 0x6000 for row in fed.rows]


def test_new_rows_stand_before_those_held() -> None:
    fed = with_newest(RequestsFed(), "", 1, page(range(9, 4, -1), following="a"))
    fed = with_older(fed, "", "a", page(range(4, 1, -1), following="b"))
    fed = with_newest(fed, "", 2, page(range(11, 6, -1), following="other"))
    assert ids(fed) == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert (fed.next, fed.stamp) == ("b", 2)


def test_where_the_newest_page_does_not_join_what_is_held_it_replaces_it() -> None:
    fed = with_newest(RequestsFed(), "", 1, page(range(9, 4, -1), following="a"))
    fed = with_newest(fed, "", 2, page(range(29, 24, -1), following="z"))
    assert ids(fed) == [29, 28, 27, 26, 25]
    assert fed.next == "z"


def test_another_search_begins_anew() -> None:
    fed = with_newest(RequestsFed(), "", 1, page(range(9, 4, -1)))
    fed = with_newest(fed, "curl", 1, page(range(9, 8, -1), total=1))
    assert (ids(fed), fed.query, fed.total) == ([9], "curl", 1)


def test_an_older_page_that_follows_something_else_is_dropped() -> None:
    fed = with_newest(RequestsFed(), "", 1, page(range(9, 4, -1), following="a"))
    assert with_older(fed, "", "other", page(range(4, 1, -1))) is fed
    assert with_older(fed, "curl", "a", page(range(4, 1, -1))) is fed


def test_a_long_list_is_bounded_and_says_that_there_is_no_more() -> None:
    fed = with_newest(RequestsFed(), "", 1, page(range(9, 4, -1), following="a"))
    fed = with_older(fed, "", "a", page(range(ROWS_KEPT + 9), following="b"))
    assert len(fed.rows) == ROWS_KEPT
    assert fed.next is None


def test_one_id_may_come_twice() -> None:
    first, second = ledger_row(1), ledger_row(2)
    twin = RequestsPage(rows=[second, first], next=None, total=2)
    fed = with_newest(RequestsFed(rows=(first,), total=1), "", 1, twin)
    assert ids(fed) == [2, 1]


def test_the_ledger_is_asked_only_when_something_changed() -> None:
    assert requests_wanted(RequestsFed(), "", 7) == RequestsWanted("", 7, newest=True)
    held = with_newest(RequestsFed(), "", 7, page(range(9, 4, -1), following="a"))
    assert requests_wanted(held, "", 7) is None
    assert requests_wanted(held, "", 8) == RequestsWanted("", 8, newest=True)
    assert requests_wanted(held, "curl", 7, at_end=True) == RequestsWanted("curl", 7, newest=True)
    assert requests_wanted(held, "", 7, at_end=True) == RequestsWanted("", 7, before="a")
    assert requests_wanted(held, "", 7, opened="req-1") == RequestsWanted("", 7, opened="req-1")
    missed = folded(Fed(held), RequestsMissed("gone")).requests
    assert missed.rows == held.rows
    assert requests_wanted(missed, "", 7) == RequestsWanted("", 7, newest=True)


def test_log_lines_follow_one_another_and_old_ones_go() -> None:
    fed = with_lines(LogFed(), 0, LogPage(lines=[log_line(seq) for seq in range(1, 4)], next=3))
    fed = with_lines(fed, 3, LogPage(lines=[log_line(4)], next=4))
    assert [line.seq for line in fed.lines] == [1, 2, 3, 4]
    assert with_lines(fed, 3, LogPage(lines=[log_line(4)], next=4)) is fed
    many = LogPage(lines=[log_line(seq) for seq in range(5, LINES_KEPT + 9)], next=LINES_KEPT + 8)
    fed = with_lines(fed, 4, many)
    assert len(fed.lines) == LINES_KEPT
    assert fed.lines[-1].seq == LINES_KEPT + 8


def test_an_engine_that_started_anew_starts_the_log_anew() -> None:
    fed = with_lines(LogFed(), 0, LogPage(lines=[log_line(1)], next=900))
    fed = with_lines(fed, 900, LogPage(lines=[], next=3))
    assert (fed.lines, fed.next) == ((), 0)


def test_trouble_stays_until_an_answer_comes() -> None:
    fed = folded(NOTHING_FED, LogMissed("gone"))
    assert fed.log.trouble == "gone"
    assert folded(fed, LogCame(0, LogPage(lines=[], next=0))).log.trouble is None


def brought(desk: FakeDesk, want: RequestsWanted | None, after: int | None = None) -> list[Came]:
    """What both loops tell in a moment of asking."""

    async def listen() -> list[Came]:
        came: list[Came] = []
        feeding = Feeding(desk, came.append, every_s=60.0)
        loops = [
            asyncio.ensure_future(feeding.requests(lambda: want)),
            asyncio.ensure_future(feeding.log(lambda: after)),
        ]
        await asyncio.sleep(0.01)
        for loop in loops:
            loop.cancel()
        return came

    return asyncio.run(listen())


def test_nothing_wanted_is_nothing_asked() -> None:
    desk = FakeDesk()
    assert brought(desk, None) == []
    assert desk.asked == []


def test_each_want_is_one_question() -> None:
    desk = FakeDesk()
    came = brought(desk, RequestsWanted("curl", 3, newest=True, before="req-600c", opened="req-6007"), after=100)
    assert desk.asked == [
        "/admin/requests?q=curl&limit=50",
        "/admin/requests?q=curl&limit=50&before=req-600c",
        "/admin/requests/req-6007",
        "/admin/log?after=100",
    ]
    newest, older, one, log = came
    assert isinstance(newest, RequestsCame)
    assert not newest.older
    assert isinstance(older, RequestsCame)
    assert older.older
    assert [row.id for row in older.page.rows] == ["req-6007", "req-6002"]
    assert one == RequestCame(ledger_row(7))
    assert isinstance(log, LogCame)
    assert [line.seq for line in log.page.lines] == list(range(101, 121))


def test_a_request_that_still_runs_is_no_trouble() -> None:
    assert brought(FakeDesk(), RequestsWanted("", 0, opened="req-7f3a")) == []


def test_what_fails_is_told_in_words() -> None:
    assert brought(FakeDesk(trouble="no answer within 2 s"), RequestsWanted("", 0, newest=True), after=0) == [
        RequestsMissed("the ledger cannot be read: no answer within 2 s"),
        LogMissed("the log cannot be read: no answer within 2 s"),
    ]
    lacks = FakeDesk(lacks="this engine has no ledger")
    assert brought(lacks, RequestsWanted("", 0, newest=True)) == [RequestsMissed("this engine has no ledger")]
