"""The queue view: the longest wait first, every reason whole, and no more drawn than is in sight."""

from __future__ import annotations

import asyncio

import pytest
from syrupy.assertion import SnapshotAssertion

from console.draw import panels, queue_view, rounds_view
from console.draw.frame import Frame, framed
from console.keys.views import ViewState
from console.viewmodel import queue as queue_part
from console.viewmodel.queue import QueueView
from engine.protocol import Queued
from tests.console.films import STATES, Moment, film, seen, text
from tests.console.stage import staged
from tests.support import fake_health


def test_the_longest_wait_comes_first_with_its_sentence() -> None:
    content = queue_view.content(seen("waiting", 12), ViewState(), 116, 31)
    assert [row.id for row in content.rows] == ["req-91aa", "req-91ab"]
    page = text([*content.head, *content.body])
    assert "◔ 1 waits for a slot   ◕ 1 waits for memory   8,310 prompt tok in all" in page
    first, second = page.index("open-webui"), page.index("日本語クライアント")
    assert first < page.index("all 4 slots are busy") < second < page.index("memory is almost full")


@pytest.mark.parametrize("width", [36, 56, 76, 116, 196])
def test_reasons_are_whole_at_every_width(width: int) -> None:
    content = queue_view.content(seen("waiting", 12), ViewState(), width, 31)
    page = " ".join(text(list(content.body)).split())
    for entry in fake_health.waiting(12.0).queue:
        assert entry.reason in page
    assert sum(row.lines for row in content.rows) == len(content.body)


def test_a_row_holds_what_the_request_asks_for() -> None:
    content = queue_view.content(seen("crowd", 3), ViewState(), 116, 31)
    row = content.rows[7]
    expected = "8 3 m 20 s ◔ waits for slot 4, its own open-webui req-a007 379 1,024 4"
    assert " ".join(text([content.body[row.first]]).split()) == expected
    assert "◔ 350 wait for a slot   ◔ 50 wait for slot 4, its own" in text(list(content.head))


def test_only_rows_in_sight_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    draw = queue_view._row

    def counted(*args: object) -> object:
        asked.append(1)
        return draw(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_view, "_row", counted)
    content = queue_view.content(seen("crowd", 3), ViewState(), 76, 19)
    assert len(content.rows) == 500
    assert asked == []
    rows = framed(content, Frame(80, 21, offset=400, cursor=content.rows[202].id))
    assert 0 < len(asked) <= 10
    assert sum("▌" in span.text for row in rows for span in row) == content.rows[202].lines


def test_a_filter_that_matches_nobody_and_an_empty_queue_say_so() -> None:
    none = queue_view.content(seen("waiting", 2, "nobody"), ViewState(filter="nobody"), 76, 19)
    assert "none of 2 matches the filter" in text(list(none.body))
    for scene, then in (("idle", "begins at once"), ("draining", "takes no request")):
        page = text(list(queue_view.content(seen(scene, 2), ViewState(), 76, 19).body))
        assert "nothing waits" in page
        assert then in page
    one = queue_view.content(seen("waiting", 2, "webui"), ViewState(filter="webui"), 76, 19)
    assert "1 of 2 waiting" in text([one.summary])


def test_the_cursor_walks_the_whole_queue_and_opens_a_request() -> None:
    async def act() -> None:
        async with staged((80, 24)) as stage:
            await stage.play(fake_health.crowd, [1.0])
            await stage.pilot.press("3", "end", "up")
            assert stage.app.state.cursor == "req-a1f2"
            assert "req-a1f2" not in stage.text()
            await stage.pilot.press("enter")
            page = stage.text()
            assert "req-a1f2" in page
            assert "number 499 of 500 by age" in page
            # It got its slot: the list takes the place of what was opened.
            await stage.play(fake_health.waiting, [2.0])
            assert "all 4 slots are busy" in stage.text()
            await stage.play(fake_health.crowd, [3.0])
            await stage.pilot.press("escape", "home", "pagedown")
            assert stage.app.state.cursor is not None
            assert stage.app.state.cursor > "req-a003"

    asyncio.run(act())


def test_pictures(picture: SnapshotAssertion) -> None:
    more = {"crowd": Moment("crowd", 3, keys=("j", "j", "j")), "opened": Moment("waiting", 12, keys=("end", "enter"))}
    lost = {"lost": Moment("waiting", 12, lost=True)}
    for name, svg in film("3", (120, 36), STATES | lost | more).items():
        assert svg == picture(name=name)


def test_a_small_screen(picture: SnapshotAssertion) -> None:
    for svg in film("3", (60, 18), {"pressure": Moment("pressure", 8, keys=("end",))}).values():
        assert svg == picture


def test_a_queue_that_is_not_shown_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = queue_part.queued

    def counted(entry: Queued) -> QueueView:
        made.append(entry.id)
        return make(entry)

    monkeypatch.setattr(queue_part, "queued", counted)
    view = seen("crowd", 3)
    rounds_view.content(view, ViewState(), 76, 19)
    assert view.queue_total == 500
    assert made == []
    for content in (queue_view.content(view, ViewState(), 76, 19), panels.queue(view, 76)):
        framed(content, Frame(80, 21, offset=400))
        assert 0 < len(set(made)) <= 10
        made.clear()
