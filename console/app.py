"""The console app: keys and messages in, frames out. Fetching is `client.py`, meaning `view.py`, drawing `draw/`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input

from console import paint
from console.actions import ACTIONS, acts_in
from console.asks import Act, Desk, Verb
from console.clerk import Clerk, FeedCame, OrderDone, Seen
from console.client import BadAddress, HealthClient, Unreachable
from console.cursor import moved, paged
from console.feeding import FEED_S
from console.history import History, ended_requests
from console.look import colour_look, plain_look
from console.recording import NotARecording, Recorder
from console.screen import Link, ScreenView
from console.spans import literal
from console.view import screen_view
from console.views import ViewName, ViewState
from console.widgets.board import Board
from console.widgets.confirm import ConfirmScreen
from console.widgets.filter_bar import FilterBar
from console.widgets.help_screen import HelpScreen
from console.widgets.notice import NoticeBar
from engine.protocol import Health

POLL_S = 0.25
RETRY_S = 1.0
_PANEL_PAGE = 8
# More rows than any list has.
_ALL = 1 << 30
# The exit code of a command line that does not parse.
USAGE = 2
FAILURE = 1


class HealthSource(Desk, Protocol):
    """Where snapshots come from, and what answers the other questions; raises Unreachable."""

    url: str

    async def fetch(self) -> Health: ...


@dataclass
class SnapshotArrived(Message):
    """A snapshot, and when it came by the app's clock."""

    health: Health
    at: float


@dataclass
class SnapshotMissed(Message):
    """An attempt that brought nothing, and why."""

    reason: str


class ConsoleApp(App[int]):
    """The whole screen. `source` is asked every `poll_s`, after a failure every `retry_s`, for what a view needs beside
    the snapshot every `feed_s`.

    `recorder` is one that the source feeds, looked at for its trouble; `writes` allows orders to the engine; `clock`
    gives monotonic seconds (a fake one in tests).
    """

    TITLE = "tandem console"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS = [  # noqa: RUF012 -- Textual reads a plain list
        Binding(action.keys, action.name, action.label, show=False, priority=action.always) for action in ACTIONS
    ]
    DEFAULT_CSS = """
    Screen {
        background: #121212;
        overflow: hidden;
        layers: default above;
        &:nocolor { background: ansi_default; }
    }
    """

    def __init__(
        self,
        source: HealthSource,
        *,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
        feed_s: float = FEED_S,
        writes: bool = False,
    ) -> None:
        plain = "NO_COLOR" in os.environ
        # Textual strips colour altogether only where it lets the terminal's own colours through.
        super().__init__(ansi_color=plain)
        self._look = plain_look() if plain else colour_look()
        self.board = Board(self._look)
        self._source = source
        self._recorder = recorder
        self._clock = clock
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._history = History()
        self._latest: tuple[Health, float] | None = None
        self._held: tuple[Health, float] | None = None
        self._error: str | None = None
        self._open = ViewName.OVERVIEW
        self._states = {name: ViewState() for name in ViewName}
        self._view: ScreenView | None = None
        self._clerk = Clerk(self, source, self._seen, writes=writes, every_s=feed_s)

    def compose(self) -> ComposeResult:
        yield self.board
        yield FilterBar()
        yield NoticeBar(self._look)

    def on_mount(self) -> None:
        self.animation_level = "none"
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self.exit, 128 + signum)
        self._show()
        # Staleness grows while an answer hangs, so it is looked at between answers too.
        self.set_interval(1.0, self._show)
        self.run_worker(self._watch(), name="health", exit_on_error=True)

    async def _watch(self) -> None:
        """Ask for snapshots for as long as the app runs; each answer becomes a message."""
        while True:
            started = self._clock()
            pause = self._poll_s
            try:
                health = await self._source.fetch()
            except Unreachable as error:
                self.post_message(SnapshotMissed(str(error)))
                pause = self._retry_s
            else:
                self.post_message(SnapshotArrived(health, self._clock()))
            await asyncio.sleep(max(0.05, pause - (self._clock() - started)))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self._latest = (message.health, message.at)
        self._error = None
        self._history.add(message.health, message.at)
        self._show()

    def on_snapshot_missed(self, message: SnapshotMissed) -> None:
        self._error = message.reason
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.display:
            self._change(replace(self.state, filter=event.value))
        self._show()

    def on_filter_bar_closed(self, event: FilterBar.Closed) -> None:
        self.query_one(FilterBar).close()
        if not event.keep:
            self._change(replace(self.state, filter=""))

    def _show(self) -> None:
        """Put the current state on the board."""
        shown = self._held or self._latest
        age = self._clock() - shown[1] + shown[0].snapshot_age_s if shown else None
        notice = self._recorder.trouble if self._recorder else None
        link = Link(self._source.url, age, self._error, paused=self._held is not None, notice=notice)
        health = shown[0] if shown else None
        view = screen_view(
            health,
            self._history.track(),
            link,
            self.state.filter,
            textures=self._look.plain,
            fed=self._clerk.fed,
            writes=self._clerk.writes,
        )
        self._view = view
        self._states[self._open] = self.board.show(view, self._open, self.state)

    def _seen(self) -> Seen:
        """What the clerk goes by."""
        health = self._latest[0] if self._latest else None
        return Seen(
            name=self._open,
            state=self.state,
            view=self._view,
            ended=ended_requests(health) if health is not None else 0,
            at_end=self.board.at_end,
            paused=self._held is not None,
        )

    @property
    def open_view(self) -> ViewName:
        """The view that fills the screen."""
        return self._open

    @property
    def state(self) -> ViewState:
        """What a person did in the view that is open."""
        return self._states[self._open]

    def _change(self, state: ViewState) -> None:
        self._states[self._open] = state
        self._show()
        self._clerk.nudge()

    def on_feed_came(self, message: FeedCame) -> None:
        self._clerk.take(message.came)
        self._show()

    def on_order_done(self, message: OrderDone) -> None:
        self._say(message.reply.message, good=message.reply.done)

    def _say(self, text: str, *, good: bool) -> None:
        self.query_one(NoticeBar).say(literal(text), good=good)

    async def action_quit(self) -> None:
        self.exit(0)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self._look))

    def action_filter(self) -> None:
        self.query_one(FilterBar).open(self.state.filter)

    def action_pause(self) -> None:
        self._held = None if self._held else self._latest
        self._show()

    def action_next_panel(self) -> None:
        self._choose(1)

    def action_previous_panel(self) -> None:
        self._choose(-1)

    def action_move(self, rows: int) -> None:
        sheet = self.board.sheet
        if sheet is None:
            self.board.scroll_chosen(rows)
        else:
            self._change(moved(sheet, self.state, rows, self.board.view_height))

    def action_page(self, pages: int) -> None:
        sheet = self.board.sheet
        if sheet is None:
            self.board.scroll_chosen(pages * _PANEL_PAGE)
        else:
            self._change(paged(sheet, self.state, pages, self.board.view_height))

    def action_move_to_end(self, last: bool) -> None:
        self.action_move(_ALL if last else -_ALL)

    def action_open(self) -> None:
        if self._open is ViewName.OVERVIEW:
            self.action_view(paint.OPENS[self.board.chosen])
        elif self._open is ViewName.LOG:
            self._open_request(self._clerk.request())
        elif self.state.cursor is not None and self._open in paint.OPENING:
            self._change(replace(self.state, detail=self.state.cursor, offset=0))

    def action_view(self, name: str) -> None:
        self._open = ViewName(name)
        self._show()
        self._clerk.attend(self._open)

    def action_order(self, verb: str) -> None:
        """Ask before anything is done to the engine; where nothing can be, say why."""
        asked = self._clerk.order(Verb(verb))
        act = self._clerk.chosen(Verb(verb))
        if isinstance(asked, str) or act is None:
            self._say(str(asked), good=False)
        else:
            self.push_screen(ConfirmScreen(self._look, asked, self._source.url), partial(self._confirmed, act))

    def _confirmed(self, act: Act, yes: bool | None) -> None:
        if yes:
            self._clerk.carry_out(act)

    def action_log_of_request(self) -> None:
        """The log, with only the lines of the chosen request."""
        request = self._clerk.request()
        if request is not None:
            self._states[ViewName.LOG] = ViewState(filter=request)
            self.action_view(ViewName.LOG)

    def _open_request(self, request: str | None) -> None:
        if request is not None:
            self._states[ViewName.REQUESTS] = ViewState(detail=request)
            self.action_view(ViewName.REQUESTS)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that belongs to some views does nothing in the others."""
        return acts_in(action, parameters, self._open)

    async def action_back(self) -> None:
        if self.state.detail is not None:
            self._change(replace(self.state, detail=None))
        elif self.state.filter:
            self._change(replace(self.state, filter=""))
        elif self._open is not ViewName.OVERVIEW:
            self.action_view(ViewName.OVERVIEW)

    def _choose(self, step: int) -> None:
        panels = self.board.shown_panels
        if self.board.chosen in panels:
            self.board.choose(panels[(panels.index(self.board.chosen) + step) % len(panels)])


def run(url: str, *, once: bool = False, record: Path | None = None) -> int:
    """Show the engine at `url` until a person leaves; with `once`, print one frame. Returns the exit code."""
    try:
        if once:
            from console.once import print_once

            return print_once(url)
        if record is None:
            return asyncio.run(_run(url))
        with Recorder(record) as recorder:
            code = asyncio.run(_run(url, recorder))
        if recorder.trouble is not None:
            print(f"tandem console: {recorder.trouble}", file=sys.stderr)
        return code
    except BadAddress as error:
        print(f"tandem console: {error}", file=sys.stderr)
        return USAGE
    except NotARecording as error:
        print(f"tandem console: --record: {error}", file=sys.stderr)
        return FAILURE if error.damaged else USAGE


async def _run(url: str, recorder: Recorder | None = None) -> int:
    async with HealthClient(url, recorder) as client:
        app = ConsoleApp(client, recorder=recorder)
        # Without the mouse the terminal's own selection works, and no report can trickle in after leaving.
        result = await app.run_async(mouse=False)
    return app.return_code or 0 if result is None else result
