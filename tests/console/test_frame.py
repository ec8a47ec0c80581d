"""The frame around the views: time, engines, themes, commands by name, the mouse; each as a person uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from textual.command import CommandPalette

from console.draw.arrange import Region
from console.draw.footer import action_at, places
from console.draw.theme import ThemeName
from console.keys.actions import ACTIONS
from console.keys.views import ViewName
from engine.protocol import Health
from tests.console.stage import Stage, staged
from tests.support import fake_health

OTHERS = ("http://box:8001", "http://box:8002")


def on_stage(
    act: Callable[[Stage], Awaitable[None]],
    size: tuple[int, int] = (100, 30),
    *,
    others: tuple[str, ...] = (),
    theme: ThemeName = ThemeName.DARK,
) -> None:
    async def run() -> None:
        async with staged(size, others=others, theme=theme) as stage:
            await act(stage)

    asyncio.run(run())


def served(number: int) -> Callable[[float], Health]:
    """A scene told apart by what was served."""

    def scene(t: float) -> Health:
        body = fake_health.busy(t)
        parallel = body.parallel
        return replace(body, parallel=replace(parallel, totals=replace(parallel.totals, served=number + int(t))))

    return scene


def header(stage: Stage) -> str:
    return "\n".join(stage.text().splitlines()[:2])


def test_a_person_goes_back_in_time_and_returns() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(served(1000), range(300))
        await stage.pilot.press("p")
        assert "paused, 0.0" in header(stage)
        await stage.pilot.press("left", "left_square_bracket")
        assert "paused, 2.0 s ago" in header(stage)
        assert "served 1,297" in header(stage)
        await stage.pilot.press("shift+left", "left_curly_bracket")
        assert "paused, 2 m 02 s ago" in header(stage)
        assert "served 1,177" in header(stage)
        await stage.pilot.press("right", "shift+right")
        assert "served 1,238" in header(stage)
        await stage.play(served(2000), [1.0])
        assert "served 1,238" in header(stage)
        await stage.pilot.press("g")
        assert "served 2,001" in header(stage)
        assert "live" in header(stage)

    on_stage(act)


def test_time_ends_at_its_oldest_and_newest_moment() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.press("left")
        assert "paused" not in header(stage)
        await stage.play(served(1000), range(10))
        await stage.pilot.press("shift+left")
        assert "served 1,000" in header(stage)
        assert "paused, 9.0 s ago" in header(stage)
        await stage.pilot.press("shift+right")
        assert "live" in header(stage)
        await stage.pilot.press("right")
        assert "live" in header(stage)

    on_stage(act)


def test_a_held_picture_outlives_the_connection() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.busy, range(6))
        await stage.pilot.press("left")
        await stage.miss("connection refused", after=60.0)
        assert "paused, 1 m 01 s ago" in header(stage)
        assert "connection refused" in header(stage)
        assert "Writing," in stage.text()
        await stage.pilot.press("p")
        assert "no update for 1 m 00 s" in header(stage)
        assert "Writing," not in stage.text()

    on_stage(act)


def test_engines_are_gone_round_and_named() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(served(1000), [5.0])
        await stage.play(served(2000), [1.0], engine=1)
        assert "1/3 127.0.0.1:8000" in header(stage)
        assert "served 1,005" in header(stage)
        await stage.pilot.press("left", "e")
        assert "2/3 box:8001" in header(stage)
        assert "served 2,001" in header(stage)
        assert "paused" not in header(stage)
        await stage.pilot.press("e")
        assert "no answer yet" in header(stage)
        await stage.pilot.press("e")
        assert "served 1,005" in header(stage)

    on_stage(act, (120, 30), others=OTHERS)


def test_a_lone_engine_is_not_numbered() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(served(1000), [5.0])
        await stage.pilot.press("e")
        assert "1/1" not in header(stage)
        assert "served 1,005" in header(stage)

    on_stage(act)


def test_only_the_engine_on_the_screen_is_asked_often() -> None:
    async def act() -> None:
        async with staged(others=OTHERS[:1]) as stage:
            pauses: dict[str, list[float]] = {}
            for session in stage.app.sessions:

                async def pause(seconds: float, name: str = session.name) -> None:
                    pauses.setdefault(name, []).append(seconds)
                    await asyncio.Event().wait()

                async def fetch() -> Health:
                    return fake_health.idle(1.0)

                session.pause = pause  # type: ignore[method-assign]
                session.api.fetch = fetch  # type: ignore[method-assign]
            watching = [asyncio.create_task(stage.app._poll(index)) for index in range(2)]
            await stage.pilot.pause(0.1)
            for task in watching:
                task.cancel()
            assert pauses == {"127.0.0.1:8000": [0.25], "box:8001": [5.0]}

    asyncio.run(act())


def test_every_theme_can_be_had_by_key() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        grounds = []
        for theme in [*list(ThemeName)[1:], ThemeName.DARK]:
            await stage.pilot.press("t")
            assert stage.app.theme == f"tandem-{theme.value}"
            assert stage.text().isascii() == (theme is ThemeName.ASCII)
            grounds.append(stage.app.screen.styles.background.hex)
        assert grounds == ["#FFFFFF", "#121212", "#121212", "#121212"]

    on_stage(act)


def test_ascii_holds_in_every_view_and_over_them() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, range(3))
        for key in (*"12345678", "question_mark", "escape", "colon"):
            await stage.pilot.press(key)
            assert stage.text().isascii(), key

    on_stage(act, theme=ThemeName.ASCII)


def test_no_color_wins_over_a_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        strips = stage.app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip]
        assert all(style is None or (style.color is None and style.bgcolor is None) for style in styles)

    on_stage(act, theme=ThemeName.LIGHT)


async def command(stage: Stage, text: str) -> None:
    await stage.pilot.press("ctrl+p", *text)
    for _ in range(100):
        await stage.pilot.pause(0.02)
        if isinstance(stage.app.screen, CommandPalette) and text in "".join(stage.text().splitlines()[6:]):
            break
    await stage.pilot.press("enter")
    await stage.pilot.pause()


def test_the_palette_runs_actions_themes_and_engines() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(served(1000), [5.0])
        await command(stage, "queue")
        assert stage.app.open_view is ViewName.QUEUE
        await command(stage, "theme light")
        assert stage.app.theme == "tandem-light"
        await command(stage, "engine box:8002")
        assert "3/3 box:8002" in header(stage)

    on_stage(act, (120, 36), others=OTHERS)


def test_the_palette_offers_every_command_that_works_in_the_view() -> None:

    async def act(stage: Stage) -> None:
        offered = [command.action for command in stage.app.palette_commands()]
        everywhere = [action.name for action in ACTIONS if action.in_palette and not action.views]
        assert everywhere == offered[: -len(ThemeName)]

    on_stage(act)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("view", ViewName)
def test_the_footer_names_every_view_and_help(width: int, view: ViewName) -> None:
    shown = places(view, width)
    assert [place.action.shown_key for place in shown[:9]] == [*"12345678", "?"]
    assert shown[-1].end <= width
    words = "".join(span.text for place in shown for span in place.line)
    assert view.value in words
    for place in shown:
        assert action_at(view, width, place.start) == action_at(view, width, place.end - 1) == place.action.name
    assert action_at(view, width, 0) is None


def test_a_click_on_the_footer_is_its_key() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        queue = next(place for place in places(ViewName.OVERVIEW, 100) if place.action.label == "queue")
        await stage.pilot.click(offset=(queue.start + 2, 29))
        assert stage.app.open_view is ViewName.QUEUE

    on_stage(act)


def test_a_click_chooses_and_another_opens() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(fake_health.waiting, [5.0])
        roles = f"#{Region.ROLES.value}"
        await stage.pilot.click(roles)
        assert stage.app.board.chosen is Region.ROLES
        await stage.pilot.click(roles)
        assert stage.app.open_view is ViewName.ROLES
        await stage.pilot.press("2")
        row = next(y for y, line in enumerate(stage.text().splitlines()) if "side" in line and " 1 " in line)
        await stage.pilot.click(offset=(20, row))
        assert stage.app.state.cursor == "1"
        await stage.pilot.click(offset=(20, row))
        assert stage.app.state.detail == "1"

    on_stage(act)


def test_a_defect_of_the_books_is_told_first() -> None:
    async def act(stage: Stage) -> None:
        broken = "slot 2 holds 3 pages that the pool does not count"
        await stage.play(lambda t: replace(fake_health.idle(t), defect=broken), [5.0])
        assert "defect: slot 2" in header(stage)

    on_stage(act)
