"""Requests under their key: what the ledger is asked, and when; a request opened."""

from __future__ import annotations

from msgspec.structs import replace

from engine.protocol import Health
from tests.console.stage import SilentSource, Stage, mark, on_stage
from tests.support import fake_health


def test_the_ledger_is_asked_while_its_view_is_open_and_only_when_a_request_ended() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        assert stage.api.asked == []
        await stage.pilot.press("6")
        text = await stage.until("240 in the ledger")
        assert "wrote 123 tokens at 30.5 tok/s and came to its end" in text
        assert "▶ Writing" in text
        await stage.pilot.pause(0.12)
        count = len(stage.api.asked)
        await stage.pilot.pause(0.12)
        assert len(stage.api.asked) == count
        stage.api.admin.rows.append(replace(stage.api.admin.rows[-1], id="req-new", client="newcomer"))
        await stage.play(lambda t: busier(t, 1), [6.0])
        await stage.until("newcomer")
        await stage.pilot.press("1")
        count = len(stage.api.asked)
        await stage.play(lambda t: busier(t, 2), [6.0])
        await stage.pilot.pause(0.12)
        assert len(stage.api.asked) == count

    on_stage(act)


def busier(t: float, served: int) -> Health:
    body = fake_health.busy(t)
    totals = replace(body.parallel.totals, served=body.parallel.totals.served + served)
    return replace(body, parallel=replace(body.parallel, totals=totals))


def test_scrolling_to_the_end_brings_older_rows() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.idle, [5.0])
        await stage.pilot.press("6")
        await stage.until("240 in the ledger, 50 here")
        await stage.pilot.press("end")
        await stage.until("240 in the ledger, 100 here")
        for page in ("150 here", "200 here", "240 in the ledger ─"):
            await stage.pilot.press("end")
            await stage.until(page)
        text = await stage.until("▲ ")
        assert " here" not in text.splitlines()[2]
        before = [path for path in stage.api.asked if "before=" in path]
        assert len(before) == len(set(before)) == 4

    on_stage(act, size=(80, 24))


def test_the_search_is_the_engines() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("6", "slash", *"logi")
        text = await stage.until("18 in the ledger")
        assert "only “logi”" in text
        assert "wrote" not in text
        assert any("q=logi" in path for path in stage.api.asked)
        await stage.pilot.press("escape")
        await stage.until("240 in the ledger")
        await stage.pilot.press("slash", *"zz", "enter")
        await stage.until("no request matches “zz”")

    on_stage(act)


def test_enter_opens_a_request_and_escape_goes_back_to_its_row() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.idle, [5.0])
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "down")
        row = mark(stage)
        await stage.pilot.press("enter")
        text = stage.text()
        assert "request req-60ee" in text
        for words in (
            "110 tokens of at most 256",
            "64 tokens, 7.7 %",
            "empty: a slot that kept nothing",
            "resident",
            "29 Nov",
        ):
            assert words in text
        await stage.pilot.press("escape")
        assert mark(stage) == row

    on_stage(act)


def test_a_running_request_is_opened_and_becomes_its_row_when_it_ends() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "enter")
        assert "Writing," in stage.text()
        assert not any("/admin/requests/req-7f3a" in path for path in stage.api.asked)
        stage.api.admin.rows.append(replace(stage.api.admin.rows[-1], id="req-7f3a"))
        await stage.play(fake_health.idle, [6.0])
        await stage.until("wrote 123 tokens at 30.5 tok/s and came to its end")
        assert "request req-7f3a" in stage.text()

    on_stage(act)


def test_an_engine_without_a_ledger_says_so_and_the_rest_goes_on() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("6")
        text = await stage.until("✖ this engine has no ledger")
        assert "▶ Writing" in text
        assert "● ok" in text
        await stage.pilot.press("8")
        await stage.until("✖ this engine has no ledger")
        stage.api.lacks = None
        await stage.until("following")
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        assert "✖ this engine" not in stage.text()

    on_stage(act, source=SilentSource(lacks="this engine has no ledger"))
