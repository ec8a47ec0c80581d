"""The cursor stays with its row while others come and go, stays in sight, and keeps still what a person reads."""

from __future__ import annotations

from dataclasses import replace

from console.draw.cursor import at_line, moved, paged, settled
from console.draw.frame import PanelContent, RowAt
from console.keys.views import ViewState
from console.text.spans import Span

HEIGHT = 7  # five lines of body


def content(*names: str, lines: int = 1) -> PanelContent:
    body = tuple((Span(name),) for name in names for _ in range(lines))
    return PanelContent("rows", body=body, rows=tuple(RowAt(name, at * lines, lines) for at, name in enumerate(names)))


def test_down_begins_at_the_first_row_and_ends_at_the_last() -> None:
    rows = content(*"abc")
    state = moved(rows, ViewState(), 1, HEIGHT)
    assert state.cursor == "a"
    assert moved(rows, state, 1, HEIGHT).cursor == "b"
    assert moved(rows, state, 99, HEIGHT).cursor == "c"
    assert moved(rows, state, -99, HEIGHT).cursor == "a"


def test_moving_scrolls_whole_rows_into_sight() -> None:
    rows = content(*"abcde", lines=2)
    state = moved(rows, ViewState(cursor="b"), 1, HEIGHT)
    assert (state.cursor, state.offset) == ("c", 1)
    assert moved(rows, state, -2, HEIGHT).offset == 0


def test_a_body_without_rows_scrolls_by_lines() -> None:
    plain = PanelContent("text", body=tuple((Span(str(line)),) for line in range(12)))
    assert moved(plain, ViewState(), 3, HEIGHT) == ViewState(offset=3)
    assert moved(plain, ViewState(), 99, HEIGHT) == ViewState(offset=7)
    assert moved(plain, ViewState(offset=3), -9, HEIGHT) == ViewState()


def test_rows_that_come_above_do_not_move_the_row_under_the_eyes() -> None:
    before, after = content(*"bcdefgh"), content(*"xyabcdefgh")
    state = settled(before, after, ViewState(cursor="d", offset=1), HEIGHT)
    assert (state.cursor, state.offset) == ("d", 4)


def test_where_the_row_is_gone_its_successor_is_marked() -> None:
    assert settled(content(*"abc"), content(*"ac"), ViewState(cursor="b"), HEIGHT).cursor == "c"
    assert settled(content(*"abc"), content(*"ab"), ViewState(cursor="c"), HEIGHT).cursor == "b"
    assert settled(content(*"abc"), content(), ViewState(cursor="c"), HEIGHT).cursor is None


def test_a_line_belongs_to_the_row_that_covers_it() -> None:
    rows = content(*"abcd", lines=2)
    assert at_line(rows, ViewState(offset=1), 2).cursor == "b"
    assert at_line(rows, ViewState(cursor="a"), 40).cursor == "a"


def tail(*names: str) -> PanelContent:
    return replace(content(*names), tail=True)


def test_a_tail_shows_its_end_until_a_row_is_chosen() -> None:
    assert settled(None, tail(*"abcdefg"), ViewState(), HEIGHT) == ViewState(offset=2)
    state = moved(tail(*"abcdefg"), ViewState(offset=2), -1, HEIGHT)
    assert state == ViewState(cursor="f", offset=2)
    assert settled(tail(*"abcdefg"), tail(*"abcdefghij"), state, HEIGHT) == state


def test_a_tail_follows_again_from_its_last_row() -> None:
    rows = tail(*"abcdefg")
    assert moved(rows, ViewState(cursor="f", offset=0), 1, HEIGHT) == ViewState(offset=2)
    assert moved(rows, ViewState(cursor="a"), 99, HEIGHT) == ViewState(offset=2)
    assert settled(rows, tail(*"abf"), ViewState(cursor="f"), HEIGHT) == ViewState()


def test_a_page_skips_no_line() -> None:
    rows = content(*"abcdefgh", lines=2)
    state = paged(rows, ViewState(cursor="a"), 1, HEIGHT)
    assert (state.cursor, state.offset) == ("c", 1)
    assert paged(rows, state, -1, HEIGHT).cursor == "a"
    tall = content(*"abc", lines=9)
    assert paged(tall, ViewState(cursor="a"), 1, HEIGHT).cursor == "b"
    assert paged(tall, ViewState(cursor="b", offset=9), -1, HEIGHT).cursor == "a"
    plain = PanelContent("text", body=tuple((Span(str(line)),) for line in range(12)))
    assert paged(plain, ViewState(), 1, HEIGHT) == ViewState(offset=4)


def test_an_opened_row_waits_behind_its_detail() -> None:
    state = ViewState(cursor="b", detail="b")
    assert settled(content(*"abc"), PanelContent("detail"), state, HEIGHT) == state
