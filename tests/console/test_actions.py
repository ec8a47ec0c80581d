"""Orders to an engine: what is asked before anything is done; and what holds in every view beside them."""

from __future__ import annotations

import pytest
from textual import events

from console.app.selection import WRITING_IS_OFF
from console.history.rates import Track
from console.keys.actions import ACTIONS, groups
from console.keys.views import ViewName
from console.session.api import EngineAction, Verb
from console.viewmodel.build import screen_view
from console.viewmodel.confirmations import Question, question
from console.viewmodel.rows import Link
from console.widgets.confirm import ConfirmScreen
from console.widgets.help_screen import HelpScreen
from console.widgets.notice import NoticeBar
from engine.protocol import Health
from tests.console.stage import Stage, on_stage
from tests.support import fake_health


def flat(stage: Stage) -> str:
    """What a box in the middle says, as one line."""
    rows = [line.split("│") for line in stage.text().splitlines()]
    return " ".join(" ".join(row[len(row) // 2] for row in rows if len(row) > 2).split())


def test_cancel_asks_first_says_what_happens_and_shows_the_answer() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "down", "x")
        assert isinstance(stage.app.screen, ConfirmScreen)
        text = stage.text()
        assert "cancel req-7f5f?" in text
        assert "Ends the request of open-webui in slot 1" in text
        assert "at http://127.0.0.1:8000" in text
        await stage.pilot.press("n")
        assert not isinstance(stage.app.screen, ConfirmScreen)
        assert stage.api.admin.acted == []
        await stage.pilot.press("x", "escape", "x")
        await stage.confirm()
        await stage.until("● req-7f5f is cancelled")
        assert stage.api.admin.acted == ["/admin/requests/req-7f5f/cancel"]
        await stage.pilot.press("x")
        stage.api.trouble = "no answer within 10 s"
        await stage.confirm()
        await stage.until("✖ cancel req-7f5f: no answer within 10 s")

    on_stage(act)


def test_keys_that_came_with_the_order_do_not_confirm_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("2", "down")
        for key in ("x", "y", "enter"):
            stage.app.post_message(events.Key(key, None))
        await stage.pilot.pause()
        assert isinstance(stage.app.screen, ConfirmScreen)
        assert stage.api.admin.acted == []
        await stage.confirm()
        await stage.until("req-7f3a is cancelled")

    on_stage(act)


def test_a_key_among_others_does_not_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.widgets.confirm.MOMENT_S", 3600.0)

    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("2", "down", "x", *"type", "y", "enter")
        assert isinstance(stage.app.screen, ConfirmScreen)
        await stage.pilot.press("n")
        assert not isinstance(stage.app.screen, ConfirmScreen)
        assert stage.api.admin.acted == []

    on_stage(act)


def test_cancel_works_wherever_a_request_is_chosen() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        for view, keys, request in (
            ("2", (), "req-7f3a"),
            ("3", ("down", "down"), "req-91ab"),
            ("6", ("down", "down", "enter"), "req-7f5f"),
        ):
            await stage.pilot.press(view, *keys, "x", "enter")
            await stage.until(f"{request} is cancelled")
            assert stage.api.admin.acted[-1] == f"/admin/requests/{request}/cancel"

    on_stage(act)


def test_the_engine_is_drained_and_serves_again_by_one_key() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("D")
        await stage.until("there is no snapshot yet")
        await stage.play(fake_health.waiting, [5.0])
        await stage.pilot.press("D")
        said = flat(stage)
        assert "drain the engine?" in said
        assert "Lets 4 running requests end; 2 that wait for a slot are refused" in said
        await stage.confirm()
        await stage.until("● draining: what runs may finish")
        await stage.play(fake_health.draining, [6.0])
        await stage.pilot.press("D")
        assert "serve again?" in flat(stage)
        await stage.confirm("enter")
        await stage.until("● the engine accepts requests again")
        assert stage.api.admin.acted == ["/admin/drain", "/admin/resume"]

    on_stage(act)


def test_what_ended_cannot_be_cancelled() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.idle, [5.0])
        await stage.pilot.press("6", "x")
        await stage.until("choose a request first")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "x")
        assert not isinstance(stage.app.screen, ConfirmScreen)
        await stage.until("req-60ef neither runs nor waits")

    on_stage(act)


def test_roles_load_and_unload_after_a_question_and_the_refusal_is_shown() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.refused, [5.0])
        await stage.pilot.press("5", "down", "down", "l")
        text = flat(stage)
        assert "load narrator?" in text
        assert "claims 4.5 GiB (measured)" in text
        await stage.confirm()
        await stage.until("✖ cannot load narrator")
        await stage.pilot.press("up", "u")
        assert "give 388 MiB back" in flat(stage)
        await stage.confirm("enter")
        await stage.until("✖ cannot unload decider")
        assert [path for path in stage.api.asked if "/roles/" in path] == [
            "/admin/roles/narrator/load",
            "/admin/roles/decider/unload",
        ]

    on_stage(act)


def test_without_write_nothing_is_asked_and_it_says_how_to_turn_it_on() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("x", "l", "u", "L")
        assert not stage.app.query_one(NoticeBar).display
        assert stage.app.open_view is ViewName.OVERVIEW
        for view, key in (("1", "D"), ("5", "l"), ("5", "u"), ("2", "x"), ("6", "x")):
            stage.app.query_one(NoticeBar).hush()
            await stage.pilot.press(view, "down", key)
            assert not isinstance(stage.app.screen, ConfirmScreen)
            assert WRITING_IS_OFF in stage.text()
        assert "L its log" in stage.text()
        assert "x cancel" not in stage.text()
        assert not any(path.endswith(("cancel", "load")) for path in stage.api.asked)

    on_stage(act, writes=False)


def test_every_key_is_in_the_help_on_a_small_screen() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("question_mark")
        seen = ""
        for _ in range(8):
            seen += stage.text()
            await stage.pilot.press("pagedown")
        words = seen.replace("│", " ").split()
        for action in ACTIONS:
            assert set(action.help.split()) <= set(words)
        titles = [title for title, _ in groups()]
        assert titles[-1] == "roles"
        assert set(" ".join(titles).split()) <= set(words)
        await stage.pilot.press("home")
        assert titles[0] in stage.text()
        await stage.pilot.press("q")
        assert not isinstance(stage.app.screen, HelpScreen)
        assert stage.app.is_running

    on_stage(act, size=(60, 18))


def test_any_size_draws() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        for keys in (("6", "down"), ("enter",), ("8", "up"), ("5", "down"), ("l",)):
            await stage.pilot.press(*keys)
            for size in ((1, 1), (30, 8)):
                await stage.pilot.resize_terminal(*size)
                await stage.pilot.pause()
                stage.text()

    on_stage(act)


def asked(verb: Verb, target: str, health: Health) -> Question | str:
    return question(EngineAction(verb, target), screen_view(health, Track(), Link("http://x", age_s=0.1)))


def test_a_question_says_how_far_a_request_is() -> None:
    body = fake_health.waiting(5.0)
    reading = body.lanes[3].request
    assert reading is not None
    answer = asked(Verb.CANCEL, reading.id, body)
    assert isinstance(answer, Question)
    assert "2,050 of 6,144 prompt tokens are read" in answer.text
    waits = asked(Verb.CANCEL, "req-91aa", body)
    assert isinstance(waits, Question)
    assert "out of the queue, where it has waited for 6.4 s" in waits.text
    assert asked(Verb.LOAD, "nobody", body) == "no role 'nobody' is planned here"


def test_pages_and_remarks_are_ascii_where_the_look_is() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        stage.app.action_theme("ascii")
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "x")
        assert isinstance(stage.app.screen, ConfirmScreen)
        assert stage.text().isascii()
        await stage.confirm()
        assert (await stage.until("* req-7f3a is cancelled")).isascii()
        for key in ("enter", "5", "8"):
            await stage.pilot.press(key)
            assert stage.text().isascii()
        await stage.pilot.press("question_mark")
        assert isinstance(stage.app.screen, HelpScreen)
        assert stage.text().isascii()

    on_stage(act)
