"""Several pictures of one running app: a view seen through the states in which an operator meets it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from console.draw.theme import ThemeName
from console.history.rates import History
from console.text.spans import Line
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link, ScreenView
from tests.console.stage import staged
from tests.support.fake_health import SCENES


@dataclass(frozen=True)
class Moment:
    """What is played before a picture: a scene by the second, keys, then perhaps silence."""

    scene: str
    seconds: int
    keys: tuple[str, ...] = ()
    lost: bool = False


# Each scene starts a younger engine, so none leaves a trace in the next.
STATES = {
    "idle": Moment("idle", 6),
    "busy": Moment("story", 26),
    "waiting": Moment("waiting", 12),
    "draining": Moment("draining", 6),
    "lost": Moment("busy", 6, lost=True),
}


def film(
    key: str, size: tuple[int, int], moments: dict[str, Moment], theme: ThemeName = ThemeName.DARK
) -> dict[str, str]:
    """The view behind `key` at each moment, as SVG."""

    async def shoot() -> dict[str, str]:
        pictures: dict[str, str] = {}
        async with staged(size, theme=theme) as stage:
            await stage.pilot.press(key)
            for name, moment in moments.items():
                await stage.play(SCENES[moment.scene], range(moment.seconds + 1))
                if moment.lost:
                    await stage.miss("connection refused", after=3.0)
                await stage.pilot.press(*moment.keys)
                await stage.pilot.pause()
                pictures[name] = stage.app.export_screenshot(title="tandem console")
        return pictures

    return asyncio.run(shoot())


def seen(scene: str, seconds: float, filter_text: str = "", *, textures: bool = False) -> ScreenView:
    """The frame after a scene was watched for `seconds`, a snapshot a second."""
    history = History()
    at = 0.0
    while at <= seconds:
        history.add(SCENES[scene](at), 1000.0 + at)
        at += 1.0
    link = Link("http://127.0.0.1:8000", age_s=0.1)
    return screen_view(SCENES[scene](at - 1.0), history.track(), link, filter_text, textures=textures)


def text(lines: tuple[Line, ...] | list[Line]) -> str:
    """Lines as they read."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)
