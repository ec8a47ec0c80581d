"""Puts the app on a stage without a network or a running clock: frames depend on the script alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from textual.pilot import Pilot

from console.app.app import ConsoleApp
from console.app.messages import SnapshotArrived, SnapshotFailed
from console.draw.theme import ThemeName
from console.history.recorder import Recorder
from console.widgets.confirm import ConfirmScreen
from engine.protocol import Health
from tests.support.fake_engine_api import FakeEngineApi
from tests.support.fake_health import Scene

URL = "http://127.0.0.1:8000"


@dataclass
class SilentSource(FakeEngineApi):
    """Never shows a snapshot: the tests post what arrives. What is asked beside it is answered from a script."""

    url: str = URL

    async def fetch(self) -> Health:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@dataclass
class Clock:
    """Monotonic seconds, moved by hand."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stage:
    """A running app and the hands that drive it."""

    app: ConsoleApp
    pilot: Pilot[int]
    api: FakeEngineApi = field(default_factory=FakeEngineApi)
    clock: Clock = field(default_factory=Clock)

    async def play(self, scene: Scene, seconds: Iterable[float], engine: int = 0) -> None:
        """Let a snapshot of the scene arrive at each of the given seconds."""
        start = self.clock.now
        for second in seconds:
            self.clock.now = start + second
            self.api.shown = scene(second)
            self.app.post_message(SnapshotArrived(self.api.shown, self.clock.now, engine))
        await self.pilot.pause()

    async def miss(self, reason: str, after: float) -> None:
        """Let time pass and an attempt fail."""
        self.clock.now += after
        self.app.post_message(SnapshotFailed(reason))
        await self.pilot.pause()

    async def until(self, words: str) -> str:
        """The screen's text once it says the words: what a view fetches comes when it comes."""
        for _ in range(3000):
            text = self.text()
            if words in text:
                return text
            await self.pilot.pause(0.01)
        raise AssertionError(f"{words!r} never showed:\n{self.text()}")

    async def confirm(self, key: str = "y") -> None:
        """Say yes to the question, which takes no yes before it was seen."""
        for _ in range(3000):
            await self.pilot.press(key)
            if not isinstance(self.app.screen, ConfirmScreen):
                return
        raise AssertionError(f"{key!r} never confirmed:\n{self.text()}")

    def text(self) -> str:
        """What the screen says, row by row."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips()
        assert len(strips) == height
        assert all(strip.cell_length == width for strip in strips)
        return "\n".join(strip.text for strip in strips)


@asynccontextmanager
async def staged(
    size: tuple[int, int] = (120, 36),
    *,
    writes: bool = False,
    source: SilentSource | None = None,
    others: Sequence[str] = (),
    theme: ThemeName = ThemeName.DARK,
    recorder: Recorder | None = None,
) -> AsyncIterator[Stage]:
    """The app at a size, before any answer; `others` are the addresses of further engines."""
    clock = Clock()
    source = source or SilentSource()
    sources = [source, *(SilentSource(url=url) for url in others)]
    app = ConsoleApp(sources, theme=theme, recorder=recorder, clock=clock, fetch_s=0.05, writes=writes)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Stage(app, pilot, source, clock)


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


def mark(stage: Stage) -> str:
    """The line that the cursor stands on."""
    return next(line for line in stage.text().splitlines() if "▌" in line)
