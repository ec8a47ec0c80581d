"""One frame of the screen as text: for logs, pipes and a quick look."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from typing import IO

from rich.console import Console
from rich.segment import Segment, Segments

from console.draw import regions
from console.draw.arrange import PANELS, Arrangement, Box, Facts, Region, arrange
from console.draw.frame import Frame, framed
from console.draw.theme import Theme, ThemeName, make_theme
from console.history.rates import History
from console.session.client import EngineClient, Unreachable
from console.text.spans import Line, fit
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link, ScreenView
from engine.protocol import Health

NOTHING_THERE = 3
# Rows enough that nothing needs scrolling; rows without content are not printed.
_TALL = 400


def print_once(
    url: str, out: IO[str] | None = None, theme: ThemeName = ThemeName.DARK, socket_path: str | None = None
) -> int:
    """Print one frame for `url` to `out` (default stdout); 0, or 3 with a line on stderr when nothing answers. An
    engine with an owner's socket at `socket_path` is asked through it."""
    stream = out if out is not None else sys.stdout
    shown = make_theme(theme, plain=not stream.isatty() or "NO_COLOR" in os.environ)
    answer = _ask(url, socket_path)
    if answer is None:
        return NOTHING_THERE
    health = answer[0]
    history = History()
    history.add(health, time.monotonic())
    view = screen_view(health, history.track(), Link(url, age_s=health.snapshot_age_s), textures=shown.textures)
    write_frame(view, min(160, max(60, shutil.get_terminal_size((100, 24)).columns)), shown, stream)
    return 0


def print_snapshot(url: str, out: IO[str] | None = None, socket_path: str | None = None) -> int:
    """Print the snapshot itself, as the engine sent it; 0, or 3 with a line on stderr when nothing answers."""
    answer = _ask(url, socket_path)
    if answer is None:
        return NOTHING_THERE
    print(answer[1].decode(), file=out if out is not None else sys.stdout)
    return 0


def _ask(url: str, socket_path: str | None) -> tuple[Health, bytes] | None:
    async def ask() -> tuple[Health, bytes]:
        async with EngineClient(url, socket_path=socket_path) as client:
            return await client.fetch_with_body()

    try:
        return asyncio.run(ask())
    except Unreachable as error:
        print(f"tandem console: nothing to show at {url}: {error}", file=sys.stderr)
        return None


def frame_lines(view: ScreenView, width: int) -> list[Line]:
    """The frame as lines of `width` cells: header, then every panel whole, one under another."""
    facts: Facts = regions.facts(view, width)
    form = arrange(width, _TALL, facts).lane_form
    rows = list(regions.bar(Region.HEADER, view, Arrangement({Region.HEADER: Box(0, 0, width, 2)}, form)))
    for panel in PANELS:
        tall = Arrangement({panel: Box(0, 0, width, _TALL)}, form)
        content = regions.panel_content(panel, view, tall)
        rows += framed(content, Frame(width, len(content.body) + 2))
    return [fit(row, width) for row in rows]


def write_frame(view: ScreenView, width: int, shown: Theme, stream: IO[str]) -> None:
    """Write the frame; text is written as it stands, never read as markup."""
    console = Console(file=stream, width=width, highlight=False, markup=False, no_color=shown.plain)
    for row in frame_lines(view, width):
        console.print(Segments([*shown.segments(row), Segment.line()]), end="", soft_wrap=True)
