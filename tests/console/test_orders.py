"""Requests, roles and log under their keys: what is fetched while they are open, and what is asked before anything is
done to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from textual import events

from console.actions import ACTIONS, groups
from console.asks import Act, Verb
from console.clerk import WRITING_IS_OFF
from console.history import Track
from console.orders import Question, question
from console.screen import Link
from console.view import screen_view
from console.views import ViewName
from console.widgets.confirm import ConfirmScreen
from console.widgets.help_screen import HelpScreen
from console.widgets.notice import NoticeBar
from engine.protocol import Health
from tests.console.stage import SilentSource, Stage, staged
from tests.support import fake_health
from tests.support.fake_admin import log_line


def on_stage(
    act: Callable[[Stage], Awaitable[None]],
    *,
    writes: bool = True,
    size: tuple[int, int] = (120, 36),
    source: SilentSource | None = None,
) -> None:
    async def run() -> None:
        async with staged(size, writes=writes, source=source) as stage:
            await act(stage)

    asyncio.run(run())


def flat(stage: Stage) -> str:
    """What a box in the middle says, as one line."""
    rows = [line.split("│") for line in stage.text().splitlines()]
    return " ".join(" ".join(row[len(row) // 2] for row in rows if len(row) > 2).split())


def mark(stage: Stage) -> str:
    """The line that the cursor stands on."""
    return next(line for line in stage.text().splitlines() if "▌" in line)


def test_the_ledger_is_asked_while_its_view_is_open_and_only_when_a_request_ended() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        assert stage.desk.asked == []
        await stage.pilot.press("6")
        text = await stage.until("240 in the ledger")
        assert "wrote 123 tokens at 30.5 tok/s and came to its end" in text
        assert "▶ Writing" in text
        await stage.pilot.pause(0.12)
        count = len(stage.desk.asked)
        await stage.pilot.pause(0.12)
        assert len(stage.desk.asked) == count
        stage.desk.admin.rows.append(replace(stage.desk.admin.rows[-1], id="req-new", client="newcomer"))
        await stage.play(lambda t: busier(t, 1), [6.0])
        await stage.until("newcomer")
        await stage.pilot.press("1")
        count = len(stage.desk.asked)
        await stage.play(lambda t: busier(t, 2), [6.0])
        await stage.pilot.pause(0.12)
        assert len(stage.desk.asked) == count

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
        before = [path for path in stage.desk.asked if "before=" in path]
        assert len(before) == len(set(before)) == 4

    on_stage(act, size=(80, 24))


def test_the_search_is_the_engines() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("6", "slash", *"logi")
        text = await stage.until("18 in the ledger")
        assert "only “logi”" in text
        assert "wrote" not in text
        assert any("q=logi" in path for path in stage.desk.asked)
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
        assert not any("/admin/requests/req-7f3a" in path for path in stage.desk.asked)
        stage.desk.admin.rows.append(replace(stage.desk.admin.rows[-1], id="req-7f3a"))
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
        stage.desk.lacks = None
        await stage.until("following")
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        assert "✖ this engine" not in stage.text()

    on_stage(act, source=SilentSource(lacks="this engine has no ledger"))


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
        assert stage.desk.admin.acted == []
        await stage.pilot.press("x", "escape", "x")
        await stage.confirm()
        await stage.until("● req-7f5f is cancelled")
        assert stage.desk.admin.acted == ["/admin/requests/req-7f5f/cancel"]
        await stage.pilot.press("x")
        stage.desk.trouble = "no answer within 10 s"
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
        assert stage.desk.admin.acted == []
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
        assert stage.desk.admin.acted == []

    on_stage(act)


def test_cancel_works_wherever_a_request_is_chosen() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        for view, keys, request in (
            ("2", ("down",), "req-7f3a"),
            ("3", ("down", "down"), "req-91ab"),
            ("6", ("down", "down", "enter"), "req-7f5f"),
        ):
            await stage.pilot.press(view, *keys, "x", "enter")
            await stage.until(f"{request} is cancelled")
            assert stage.desk.admin.acted[-1] == f"/admin/requests/{request}/cancel"

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
        assert stage.desk.admin.acted == ["/admin/drain", "/admin/resume"]

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
        assert [path for path in stage.desk.asked if "/roles/" in path] == [
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
        assert not any(path.endswith(("cancel", "load")) for path in stage.desk.asked)

    on_stage(act, writes=False)


def test_the_log_follows_until_one_scrolls_up_and_again_from_the_end() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("8")
        text = await stage.until("▼ following")
        assert "req-6078" in text
        await stage.pilot.press("up", "up")
        held = stage.text()
        assert "‖ held, 2 lines below: end follows" in held
        stage.desk.lines += [log_line(seq) for seq in range(121, 126)]
        text = await stage.until("‖ held, 7 lines below")
        assert text.splitlines()[3:30] == held.splitlines()[3:30]
        await stage.pilot.press("end")
        text = stage.text()
        assert "▼ following" in text
        assert "req-607d" in text
        stage.desk.lines.append(replace(log_line(126), text="the newest"))
        await stage.until("the newest")

    on_stage(act)


def test_the_log_filter_keeps_words_levels_and_requests() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("8")
        await stage.until("following")
        await stage.pilot.press("slash", *"warn m")
        text = await stage.until("7 of 120")
        assert "[req]" not in text
        assert text.count("△ warn") == 7

    on_stage(act)


def test_one_goes_from_a_request_to_its_log_lines_and_enter_back() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.idle, [5.0])
        stage.desk.lines = [replace(line, request="req-60ef") if line.seq == 7 else line for line in stage.desk.lines]
        await stage.pilot.press("6")
        await stage.until("240 in the ledger")
        await stage.pilot.press("down", "L")
        text = await stage.until("only “req-60ef”, 1 of 120")
        assert "[parallel] req-60ef" in text
        await stage.pilot.press("escape")
        await stage.until("▼ following")
        await stage.pilot.press("up", "up", "enter")
        await stage.until("request req-6076")

    on_stage(act)


def test_text_of_the_log_is_literal() -> None:
    hostile = "[bold red]x[/]\x1b[2J\x07\u202e日本\nsecond line"

    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        stage.desk.lines = [replace(log_line(1), text=hostile, event="[\x1b]", level="\x9bodd")]
        await stage.pilot.press("8")
        text = await stage.until("[bold red]x[/]␛[2J␇�日本")
        assert "�odd" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}
        lines = text.splitlines()
        first = next(number for number, line in enumerate(lines) if "[bold red]" in line)
        assert lines[first + 1].strip("│ ") == "second line"

    on_stage(act)


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
    return question(Act(verb, target), screen_view(health, Track(), Link("http://x", age_s=0.1)))


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
