"""The app under its keys: what each does, what arrives, what is stale, and text from outside shown as it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from textual import events

from console.app.app import ConsoleApp
from console.draw.arrange import PANELS, Region
from console.draw.regions import OPENS
from console.keys.actions import ACTIONS
from console.keys.views import VIEWS, ViewName, ViewState
from console.widgets.filter_bar import LIMIT, FilterBar
from console.widgets.help_screen import HelpScreen
from engine.protocol import Health
from tests.console.stage import Stage, staged
from tests.support import fake_health
from tests.support.fake_health import FakeHealth


def on_stage(act: Callable[[Stage], Awaitable[None]], size: tuple[int, int] = (100, 30)) -> None:
    async def run() -> None:
        async with staged(size) as stage:
            await act(stage)

    asyncio.run(run())


def opened(stage: Stage) -> ViewName:
    return stage.app.open_view


def test_every_action_of_the_registry_exists() -> None:
    for action in ACTIONS:
        assert hasattr(ConsoleApp, f"action_{action.name.split('(')[0]}"), action
    keys = [key for action in ACTIONS for key in action.keys.split(",")]
    assert len(keys) == len(set(keys))


def test_quit_exits_with_zero() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("q")
        assert stage.app.return_value == 0

    on_stage(act)


def test_help_is_made_of_the_registry() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("question_mark")
        assert isinstance(stage.app.screen, HelpScreen)
        text = stage.text()
        for action in ACTIONS:
            assert action.help in text
        await stage.pilot.press("question_mark")
        assert not isinstance(stage.app.screen, HelpScreen)

    on_stage(act, (100, 80))


def test_filter_keeps_matching_lanes_and_requests() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        await stage.pilot.press("slash", *"AIDER")
        text = stage.text()
        assert "aider" in text
        assert "opencode" not in text
        assert "none of 2 matches" in text
        await stage.pilot.press("enter")
        assert "1 of 4" in stage.text()
        await stage.pilot.press("escape")
        assert "opencode" in stage.text()

    on_stage(act)


def test_keys_typed_into_the_filter_are_text() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("slash", "q", "p", "1")
        assert stage.app.query_one(FilterBar).value == "qp1"
        assert stage.app.is_running
        assert opened(stage) is ViewName.OVERVIEW

    on_stage(act)


def test_what_is_typed_right_behind_the_slash_is_text() -> None:
    async def act(stage: Stage) -> None:
        bar = stage.app.query_one(FilterBar)
        stage.app.action_filter()
        assert stage.app.focused is bar
        await stage.pilot.press("enter")
        assert stage.app.focused is None
        assert not bar.display

    on_stage(act)


def test_a_huge_paste_is_cut_to_one_line_and_submits_nothing() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("slash")
        bar = stage.app.query_one(FilterBar)
        bar.post_message(events.Paste("open\ncode\x1b[31m\r\n" * 1700))
        await stage.pilot.pause()
        assert len(bar.value) == LIMIT
        assert bar.value.isprintable()
        assert bar.value.startswith("open code")
        assert bar.display
        await stage.pilot.press("escape", "slash", *"curl")
        assert bar.value == "curl"
        assert "1 of 4" in stage.text()

    on_stage(act)


def test_pause_holds_the_picture_and_goes_on_with_the_newest() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [5.0])
        await stage.pilot.press("p")
        held = stage.text()
        assert "paused" in held
        await stage.play(fake_health.idle, [1.0])
        assert "Writing" in stage.text()
        await stage.pilot.press("p")
        assert "Writing" not in stage.text()
        assert "paused" not in stage.text()

    on_stage(act)


def test_tab_goes_round_and_arrows_scroll_the_chosen_panel() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        seen = [stage.app.board.chosen]
        for _ in range(5):
            await stage.pilot.press("tab")
            seen.append(stage.app.board.chosen)
        assert seen == [*PANELS, Region.LANES]
        await stage.pilot.press("shift+tab")
        assert stage.app.board.chosen is Region.ROLES
        assert "decider" in stage.text()
        await stage.pilot.press("pagedown")
        assert "decider" not in stage.text()
        assert "▲" in stage.text()
        await stage.pilot.press("pageup")
        assert "decider" in stage.text()

    on_stage(act, (80, 24))


def test_a_digit_opens_a_view_and_escape_closes_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        for spec in VIEWS:
            await stage.pilot.press(spec.key)
            assert opened(stage) is spec.name
            assert spec.name is ViewName.OVERVIEW or f"▸{spec.name}" in stage.text()
        await stage.pilot.press("escape")
        assert opened(stage) is ViewName.OVERVIEW
        assert len(stage.app.board.shown_panels) == 5
        await stage.pilot.press("5")
        assert "4.46 GiB" in stage.text()
        await stage.pilot.press("o")
        assert "▸lanes" in stage.text()

    on_stage(act, (80, 24))


def test_enter_on_a_panel_opens_its_view() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        for panel, view in OPENS.items():
            stage.app.board.choose(panel)
            await stage.pilot.press("enter")
            assert opened(stage) is view
            await stage.pilot.press("escape")

    on_stage(act, (80, 24))


def test_each_view_keeps_its_own_filter() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        await stage.pilot.press("3", "slash", *"webui", "enter", "2")
        assert "aider" in stage.text()
        await stage.pilot.press("slash")
        assert stage.app.query_one(FilterBar).value == ""
        await stage.pilot.press(*"aider", "enter", "3")
        assert stage.app.state.filter == "webui"
        await stage.pilot.press("slash", "backspace", "enter")
        assert stage.app.state.filter == "webu"

    on_stage(act)


def test_the_cursor_stays_with_its_lane_and_in_sight() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        await stage.pilot.press("2", "end")
        assert stage.app.state.cursor == "3"
        assert stage.app.state.offset > 0
        await stage.pilot.press("up", "k")
        assert stage.app.state.cursor == "1"
        await stage.pilot.press("home", "enter")
        assert stage.app.state == ViewState(cursor="0", detail="0")
        await stage.pilot.press("escape")
        assert stage.app.state == ViewState(cursor="0")

    on_stage(act, (60, 8))


def test_a_lost_connection_shows_no_stale_rate_and_comes_back() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, [4.0, 5.0])
        assert "tok/s" in stage.text().splitlines()[3]
        await stage.miss("connection refused", after=3.0)
        text = stage.text()
        assert "✖ lost" in text
        assert "no update for 3.0 s" in text
        assert "connection refused" in text
        assert "Writing," not in text
        await stage.play(fake_health.busy, [1.0])
        assert "● ok" in stage.text()
        assert "Writing," in stage.text()

    on_stage(act)


def test_text_from_outside_is_literal() -> None:
    hostile = "[bold red]x[/]\x1b[2J\x07\u202e日本"

    def scene(t: float) -> Health:
        body = fake_health.waiting(t)
        request = body.lanes[0].request
        assert request is not None
        lanes = [replace(body.lanes[0], request=replace(request, client=hostile)), *body.lanes[1:]]
        return replace(body, lanes=lanes, queue=[replace(body.queue[0], reason=hostile)])

    async def act(stage: Stage) -> None:
        await stage.play(scene, [5.0])
        text = stage.text()
        assert text.count("[bold red]x[/]␛[2J␇�日本") == 2
        assert not set(text) & {"\x1b", "\x07", "\u202e"}

    on_stage(act, (120, 36))


@pytest.mark.parametrize("size", [(1, 1), (10, 4), (30, 8), (60, 18), (240, 70)])
@pytest.mark.parametrize("scene", ["waiting", "loading"])
def test_any_size_draws(size: tuple[int, int], scene: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.SCENES[scene], [5.0])
        stage.text()
        await stage.pilot.resize_terminal(80, 24)
        await stage.pilot.pause()
        assert "tandem" in stage.text()

    on_stage(act, size)


def test_only_rows_that_changed_are_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[int] = []

    async def act(stage: Stage) -> None:
        await stage.play(fake_health.idle, [5.0])
        for widget in stage.app.board.regions:
            original = widget.refresh

            def count(*areas: object, original: Callable[..., object] = original, **options: bool) -> object:
                painted.append(len(areas))
                return original(*areas, **options)

            monkeypatch.setattr(widget, "refresh", count)
        await stage.play(lambda t: fake_health.idle(5.0), [0.25])
        assert painted == []
        body = fake_health.idle(5.0)
        await stage.play(lambda t: replace(body, uptime_s=body.uptime_s + 1), [0.5])
        assert painted == [1]

    on_stage(act)


def test_it_connects_and_reconnects_by_itself() -> None:
    async def wait_for(app: ConsoleApp, stage: Stage, words: str) -> None:
        for _ in range(2000):
            await stage.pilot.pause(0.02)
            if words in stage.text():
                return
        raise AssertionError(f"{words!r} never showed:\n{stage.text()}")

    async def act() -> None:
        from console.session.client import EngineClient

        server = FakeHealth(fake_health.busy).start()
        port = int(server.url.rsplit(":", 1)[1])
        async with EngineClient(server.url) as client:
            app = ConsoleApp([client], poll_s=0.05, retry_s=0.05)
            async with app.run_test(size=(100, 30)) as pilot:
                stage = Stage(app, pilot)
                await wait_for(app, stage, "● ok")
                server.stop()
                await wait_for(app, stage, "✖ lost")
                with FakeHealth(fake_health.draining, port):
                    await wait_for(app, stage, "◑ draining")

    asyncio.run(act())
