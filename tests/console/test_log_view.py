"""The log under its key: followed, filtered, and reached from a request."""

from __future__ import annotations

from msgspec.structs import replace

from tests.console.stage import Stage, on_stage
from tests.support import fake_health
from tests.support.fake_admin import log_line


def test_the_log_follows_until_one_scrolls_up_and_again_from_the_end() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("8")
        text = await stage.until("▼ following")
        assert "req-6078" in text
        await stage.pilot.press("up", "up")
        held = stage.text()
        assert "‖ held, 2 lines below: end follows" in held
        stage.api.lines += [log_line(seq) for seq in range(121, 126)]
        text = await stage.until("‖ held, 7 lines below")
        assert text.splitlines()[3:30] == held.splitlines()[3:30]
        await stage.pilot.press("end")
        text = stage.text()
        assert "▼ following" in text
        assert "req-607d" in text
        stage.api.lines.append(replace(log_line(126), text="the newest"))
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
        stage.api.lines = [replace(line, request="req-60ef") if line.seq == 7 else line for line in stage.api.lines]
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
        stage.api.lines = [replace(log_line(1), text=hostile, event="[\x1b]", level="\x9bodd")]
        await stage.pilot.press("8")
        text = await stage.until("[bold red]x[/]␛[2J␇�日本")
        assert "�odd" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}
        lines = text.splitlines()
        first = next(number for number, line in enumerate(lines) if "[bold red]" in line)
        assert lines[first + 1].strip("│ ") == "second line"

    on_stage(act)
