"""Pictures of the requests, roles and log views through the states in which an operator meets them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.image import SVGImageSnapshotExtension

from tests.console.stage import SilentSource, Stage, staged
from tests.support import fake_health

Take = Callable[[str], None]
Scenario = Callable[[Stage, Take], Awaitable[None]]


async def at_work(stage: Stage, take: Take) -> None:
    """An operator looks round a busy engine, with writing on."""
    await stage.play(fake_health.waiting, range(7))
    await stage.pilot.press("6")
    await stage.until("100 here")
    await stage.pilot.press(*["down"] * 8)
    take("requests")
    await stage.pilot.press("enter")
    take("detail")
    await stage.pilot.press("escape", "home", "x")
    take("confirm")
    await stage.pilot.press("n", "8")
    await stage.until("following")
    take("log")
    await stage.pilot.press(*["up"] * 5)
    take("held")
    await stage.pilot.press("slash", *"warn", "enter")
    take("filtered")
    await stage.play(fake_health.refused, [1.0])
    await stage.pilot.press("5", "down", "down")
    take("refused")
    await stage.pilot.press("l")
    take("load")
    await stage.confirm()
    await stage.until("cannot load narrator")
    take("not_done")
    await stage.play(fake_health.draining, [2.0])
    await stage.pilot.press("6")
    take("draining")
    await stage.miss("connection refused", after=3.0)
    take("lost")


async def small(stage: Stage, take: Take) -> None:
    """The same on the smallest screen."""
    await stage.play(fake_health.waiting, range(7))
    await stage.pilot.press("6")
    await stage.until("50 here")
    await stage.pilot.press(*["down"] * 8)
    take("requests")
    await stage.pilot.press("enter")
    take("detail")
    await stage.pilot.press("escape", "home", "x")
    take("confirm")
    await stage.pilot.press("n", "5", "down", "down", "down")
    take("roles")
    await stage.pilot.press("8")
    await stage.until("following")
    take("log")
    await stage.pilot.press("question_mark")
    take("help")


async def empty(stage: Stage, take: Take) -> None:
    """Nothing ended yet, nothing logged yet; then an engine of before there was a ledger."""
    stage.api.admin.rows.clear()
    stage.api.lines.clear()
    await stage.play(fake_health.busy, [5.0])
    await stage.pilot.press("6")
    await stage.until("0 in the ledger")
    take("requests")
    await stage.play(fake_health.idle, [6.0])
    take("nothing")
    await stage.pilot.press("8")
    await stage.until("no line yet")
    take("log")
    await stage.pilot.press("6")
    stage.api.lacks = "this engine has no ledger"
    await stage.pilot.press("slash", "x", "enter")
    await stage.until("no ledger")
    take("lacks")


SCENARIOS: dict[str, tuple[Scenario, tuple[int, int]]] = {
    "work": (at_work, (120, 36)),
    "small": (small, (60, 18)),
    "empty": (empty, (80, 24)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_pictures(name: str, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    scenario, size = SCENARIOS[name]
    pictures: dict[str, str] = {}

    async def shoot() -> None:
        async with staged(size, writes=True, source=SilentSource()) as stage:

            def take(named: str) -> None:
                pictures[named] = stage.app.export_screenshot(title="tandem console")

            await scenario(stage, take)

    asyncio.run(shoot())
    approved = snapshot.use_extension(SVGImageSnapshotExtension)
    for named, picture in pictures.items():
        assert picture == approved(name=named)


def test_without_colour(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def shoot() -> str:
        async with staged((80, 24)) as stage:
            await stage.play(fake_health.refused, [1.0])
            await stage.pilot.press("6")
            await stage.until("50 here")
            await stage.pilot.press("down", "down", "down", "down", "enter")
            return stage.app.export_screenshot(title="tandem console")

    assert asyncio.run(shoot()) == snapshot.use_extension(SVGImageSnapshotExtension)
