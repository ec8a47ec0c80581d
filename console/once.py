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

from console import paint
from console.arrange import PANELS, Arrangement, Box, Facts, Region, arrange
from console.client import HealthClient, Unreachable
from console.draw.frame import Frame, framed
from console.history import History
from console.look import Look, colour_look, plain_look
from console.screen import Link, ScreenView
from console.spans import Line, fit
from console.view import screen_view

NOTHING_THERE = 3
# Rows enough that nothing needs scrolling; rows without content are not printed.
_TALL = 400


def print_once(url: str, out: IO[str] | None = None) -> int:
    """Print one frame for `url` to `out` (default stdout); 0, or 3 with a line on stderr when nothing answers."""
    stream = out if out is not None else sys.stdout
    colour = stream.isatty() and "NO_COLOR" not in os.environ
    try:
        view = asyncio.run(_look(url, textures=not colour))
    except Unreachable as error:
        print(f"tandem console: nothing to show at {url}: {error}", file=sys.stderr)
        return NOTHING_THERE
    width = min(160, max(60, shutil.get_terminal_size((100, 24)).columns))
    write_frame(view, width, colour_look() if colour else plain_look(), stream)
    return 0


async def _look(url: str, textures: bool) -> ScreenView:
    async with HealthClient(url) as client:
        health = await client.fetch()
    history = History()
    history.add(health, time.monotonic())
    link = Link(client.url, age_s=health.snapshot_age_s)
    return screen_view(health, history.track(), link, textures=textures)


def frame_lines(view: ScreenView, width: int) -> list[Line]:
    """The frame as lines of `width` cells: header, then every panel whole, one under another."""
    facts: Facts = paint.facts(view, width)
    form = arrange(width, _TALL, facts).lane_form
    rows = list(paint.bar(Region.HEADER, view, Arrangement({Region.HEADER: Box(0, 0, width, 2)}, form)))
    for panel in PANELS:
        tall = Arrangement({panel: Box(0, 0, width, _TALL)}, form)
        sheet = paint.sheet(panel, view, tall)
        rows += framed(sheet, Frame(width, len(sheet.body) + 2))
    return [fit(row, width) for row in rows]


def write_frame(view: ScreenView, width: int, look: Look, stream: IO[str]) -> None:
    """Write the frame; text is written as it stands, never read as markup."""
    console = Console(file=stream, width=width, highlight=False, markup=False, no_color=look.plain, force_terminal=None)
    for row in frame_lines(view, width):
        segments = [Segment(span.text, look.styles[span.tone]) for span in row]
        console.print(Segments([*segments, Segment.line()]), end="", soft_wrap=True)
