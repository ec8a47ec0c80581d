"""The console app: keys and messages in, frames out. Fetching is `client.py`, meaning `view.py`, drawing `draw/`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.command import Provider
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.message import Message
from textual.widgets import Input

from console import paint
from console.actions import ACTIONS, acts_in
from console.arrange import PANELS, Region
from console.asks import Act, Unreachable, Verb
from console.clerk import Clerk, FeedCame, OrderDone, Seen
from console.cursor import at_line, moved, paged
from console.draw.footer import action_at
from console.engines import ASIDE_S, POLL_S, RETRY_S, HealthSource, Watched, paced
from console.feeding import FEED_S
from console.history import Track, ended_requests
from console.look import ThemeName, look
from console.past import KEPT_BYTES
from console.playhead import LIVE, Playhead
from console.screen import Link, ScreenView
from console.signals import hear_signals
from console.spans import literal
from console.terminal import TerminalDriver
from console.timeline import Moment
from console.view import screen_view
from console.views import ViewName, ViewState
from console.widgets.board import Board, Touched
from console.widgets.confirm import ConfirmScreen
from console.widgets.filter_bar import FilterBar
from console.widgets.notice import NoticeBar
from console.widgets.theme import AsciiFilter, default_variables, textual_name, textual_theme
from engine.protocol import Health

if TYPE_CHECKING:
    from console.recording import Recorder

_PANEL_PAGE = 8
# While no answer comes the picture still grows older: it is shown anew this often.
_IDLE_S = 1.0
# More rows than any list has.
_ALL = 1 << 30


@dataclass
class SnapshotArrived(Message):
    """A snapshot, when it came by the app's clock, and the number of the engine that it is of."""

    health: Health
    at: float
    engine: int = 0


@dataclass
class SnapshotMissed(Message):
    """An attempt that brought nothing, and why."""

    reason: str
    engine: int = 0


def _commands() -> type[Provider]:
    from console.palette import Commands

    return Commands


class ConsoleApp(App[int]):
    """The whole screen. The engine shown is asked every `poll_s`, less often where that costs too much (`paced`),
    after a failure every `retry_s`, others seldom.

    What a view needs beside the snapshot is asked for every `feed_s`. `recorder` is one that the sources feed, looked
    at for its trouble; `writes` allows orders to the engine; `clock` gives monotonic seconds (a fake one in tests).
    `NO_COLOR` wins over the theme's colours.
    """

    TITLE = "tandem console"
    COMMANDS = {_commands}  # noqa: RUF012 -- Textual reads a plain set
    AUTO_FOCUS = None
    BINDINGS = [  # noqa: RUF012 -- Textual reads a plain list
        Binding(action.keys, action.name, action.label, show=False, priority=action.always) for action in ACTIONS
    ]
    DEFAULT_CSS = """
    Screen {
        background: $tandem-ground;
        overflow: hidden;
        layers: default above;
        &:nocolor { background: ansi_default; }
    }
    """

    def __init__(
        self,
        sources: Sequence[HealthSource],
        *,
        theme: ThemeName = ThemeName.DARK,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
        feed_s: float = FEED_S,
        writes: bool = False,
    ) -> None:
        self._plain = "NO_COLOR" in os.environ
        # Textual strips colour altogether only where it lets the terminal's own colours through.
        super().__init__(ansi_color=self._plain)
        self.engines = [Watched(source, KEPT_BYTES // len(sources)) for source in sources]
        self._shown = 0
        self._chosen_theme = theme
        self._look = look(theme, plain=self._plain)
        self.board = Board(self._look)
        self._recorder = recorder
        self._clock = clock
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._playhead = LIVE
        self._past_shown: tuple[Playhead, Moment | None, Track] | None = None
        self._open = ViewName.OVERVIEW
        self._states = {name: ViewState() for name in ViewName}
        self._view: ScreenView | None = None
        self._shown_at = 0.0
        self._clerk = Clerk(self, sources[0], self._before_eyes, writes=writes, every_s=feed_s)
        if not self._plain:
            for name in ThemeName:
                self.register_theme(textual_theme(name))
            self.theme = textual_name(theme)

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return default_variables()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *([AsciiFilter()] if self._look.ascii else [])]

    def compose(self) -> ComposeResult:
        yield self.board
        yield FilterBar()
        yield NoticeBar()

    def on_mount(self) -> None:
        self.animation_level = "none"
        hear_signals(self.exit, self._driver)
        self._show()
        self.set_interval(_IDLE_S, self._look_again)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Ask from now on: the first question takes a while, and a first frame stands before it."""
        for index in range(len(self.engines)):
            self.run_worker(self._watch(index), name=f"health {index}", exit_on_error=True)

    @property
    def engine(self) -> Watched:
        """The engine on the screen."""
        return self.engines[self._shown]

    @property
    def open_view(self) -> ViewName:
        """The view that fills the screen."""
        return self._open

    @property
    def state(self) -> ViewState:
        """What a person did in the view that is open."""
        return self._states[self._open]

    async def _watch(self, index: int) -> None:
        """Ask one engine for snapshots for as long as the app runs; each answer becomes a message."""
        engine = self.engines[index]
        spent = time.process_time()
        while True:
            started = self._clock()
            before, spent = spent, time.process_time()
            pause = paced(self._poll_s, spent - before)
            try:
                health = await engine.source.fetch()
            except Unreachable as error:
                self.post_message(SnapshotMissed(str(error), index))
                pause = self._retry_s
            else:
                self.post_message(SnapshotArrived(health, self._clock(), index))
            if index != self._shown:
                pause = max(pause, ASIDE_S)
            await engine.pause(pause - (self._clock() - started))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self.engines[message.engine].arrived(Moment(message.health, message.at))
        if message.engine == self._shown:
            self._show()

    def on_snapshot_missed(self, message: SnapshotMissed) -> None:
        self.engines[message.engine].missed(message.reason)
        if message.engine == self._shown:
            self._show()

    def on_feed_came(self, message: FeedCame) -> None:
        self._clerk.take(message.came)
        self._show()

    def on_key(self, event: events.Key) -> None:
        # Here, since a key pressed before the question came still reaches it, by way of the screen below.
        if isinstance(self.screen, ConfirmScreen) and not self.screen.takes(event):
            event.prevent_default()

    def on_order_done(self, message: OrderDone) -> None:
        self._say(message.reply.message, good=message.reply.done)

    def on_input_changed(self, event: Input.Changed) -> None:
        if isinstance(event.input, FilterBar) and event.input.display:
            self._change(replace(self.state, filter=event.value))

    def on_filter_bar_closed(self, event: FilterBar.Closed) -> None:
        self.query_one(FilterBar).close()
        if not event.keep:
            self._change(replace(self.state, filter=""))

    async def on_touched(self, message: Touched) -> None:
        """A press on the footer is its key, on a panel or a row it chooses, on what is chosen it opens."""
        region = message.region
        if region is Region.FOOTER:
            action = action_at(self._open, self.size.width, message.x)
            if action is not None and not message.rows:
                await self.run_action(action)
        elif region is Region.VIEW and message.rows:
            self._change(replace(self.state, offset=max(0, self.state.offset + message.rows)))
        elif region is Region.VIEW and self.board.sheet is not None:
            state = at_line(self.board.sheet, self.state, message.y - 1 - len(self.board.sheet.head))
            if state == self.state:
                self.action_open()
            else:
                self._change(state)
        elif region in PANELS:
            if self.board.chosen is not region:
                self.board.choose(region)
            elif not message.rows:
                self.action_open()
            self.board.scroll_chosen(message.rows)

    def _show(self) -> None:
        """Put the current state on the board."""
        self._shown_at = self._clock()
        moment, track = self._seen()
        age = None
        if moment is not None:
            age = self._clock() - (self._playhead.held or moment.at) + moment.health.snapshot_age_s
        self._view = screen_view(
            moment.health if moment else None,
            track,
            self._link(age),
            self.state.filter,
            textures=self._look.textures,
            fed=self._clerk.fed,
            writes=self._clerk.writes,
        )
        self._states[self._open] = self.board.show(self._view, self._open, self.state)

    def _look_again(self) -> None:
        """Where no answer brought a frame for a while, show how old the last one is by now."""
        if self._clock() - self._shown_at >= _IDLE_S:
            self._show()

    def _link(self, age_s: float | None) -> Link:
        return Link(
            url=self.engine.source.url,
            age_s=age_s,
            error=self.engine.error,
            paused=self._playhead.paused,
            notice=self._recorder.trouble if self._recorder else None,
            place=self._place(),
            recording=self._recorder is not None and self._recorder.trouble is None,
        )

    def _before_eyes(self) -> Seen:
        """What the clerk goes by."""
        latest = self.engine.timeline.latest()
        return Seen(
            name=self._open,
            state=self.state,
            view=self._view,
            ended=ended_requests(latest.health) if latest is not None else 0,
            at_end=self.board.at_end,
            paused=self._playhead.paused,
        )

    def _seen(self) -> tuple[Moment | None, Track]:
        """The snapshot that the screen stands at, and the rates before it."""
        timeline = self.engine.timeline
        self._playhead = self._playhead.within(timeline)
        held = self._playhead.held
        if held is None:
            return timeline.latest(), self.engine.history.track()
        if self._past_shown is None or self._past_shown[0] != self._playhead:
            self._past_shown = (self._playhead, timeline.at(held), timeline.track(held))
        return self._past_shown[1:]

    def _place(self) -> str:
        number, count = self._shown + 1, len(self.engines)
        return f"{number}/{count} {self.engine.name}" if count > 1 else ""

    def _change(self, state: ViewState) -> None:
        self._states[self._open] = state
        self._show()
        self._clerk.nudge()

    def _say(self, text: str, *, good: bool) -> None:
        self.query_one(NoticeBar).say(literal(text), self._look, good=good)

    def _play(self, playhead: Playhead) -> None:
        self._playhead = playhead
        self._show()

    async def action_quit(self) -> None:
        self.exit(0)

    def action_help(self) -> None:
        from console.widgets.help_screen import HelpScreen

        self.push_screen(HelpScreen(self._look))

    def action_command_palette(self) -> None:
        from console.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(placeholder="find a command", id="--command-palette"))

    def action_filter(self) -> None:
        self.query_one(FilterBar).open(self.state.filter)

    def action_pause(self) -> None:
        self._play(self._playhead.toggled(self.engine.timeline))

    def action_step(self, seconds: int) -> None:
        self._play(self._playhead.stepped(self.engine.timeline, seconds))

    def action_live(self) -> None:
        self._play(LIVE)

    def action_engine(self, index: int) -> None:
        """Show another engine, as it is now."""
        self._shown = index
        self._past_shown = None
        self._clerk.turn_to(self.engine.source)
        self.engine.hurry()
        self._play(LIVE)

    def action_next_engine(self) -> None:
        self.action_engine((self._shown + 1) % len(self.engines))

    def action_theme(self, name: str) -> None:
        """Change every colour and sign."""
        self._chosen_theme = ThemeName(name)
        self._look = look(self._chosen_theme, plain=self._plain)
        if not self._plain:
            self.theme = textual_name(self._chosen_theme)
        self.board.set_look(self._look)
        self._show()

    def action_next_theme(self) -> None:
        names = list(ThemeName)
        self.action_theme(names[(names.index(self._chosen_theme) + 1) % len(names)])

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
            self.push_screen(ConfirmScreen(self._look, asked, self.engine.source.url), partial(self._confirmed, act))

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
