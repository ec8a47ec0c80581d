"""The console app: owns all state, turns keys and messages into frames, and starts the workers that poll and fetch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.command import Provider
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.widgets import Input

from console.app.messages import ActionDone, DataFetched, SnapshotArrived, SnapshotFailed
from console.app.selection import Selection
from console.app.terminal import TerminalDriver, hear_signals
from console.draw import regions
from console.draw.arrange import PANELS, Region
from console.draw.cursor import at_line, moved, paged
from console.draw.footer import action_at
from console.draw.theme import ThemeName, make_theme
from console.history.rates import Track, ended_requests
from console.history.recent import KEPT_BYTES
from console.history.timeline import LIVE, Moment, Playhead
from console.keys.actions import ACTIONS, acts_in
from console.keys.views import ViewName, ViewState
from console.session.api import EngineAction, EngineApi, Unreachable, Verb
from console.session.fetched import FetchUpdate
from console.session.session import BACKGROUND_S, FETCH_S, POLL_S, RETRY_S, EngineSession
from console.text.spans import literal
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link
from console.widgets.board import Board, Touched
from console.widgets.confirm import ConfirmScreen
from console.widgets.filter_bar import FilterBar
from console.widgets.notice import NoticeBar
from console.widgets.textual_theme import AsciiFilter, default_variables, textual_name, textual_theme

if TYPE_CHECKING:
    from console.history.recorder import Recorder
    from console.widgets.command_palette import Command

_PANEL_PAGE = 8
# Without answers the picture grows older; this often it is drawn again with its new age.
_REDRAW_S = 1.0
# More rows than any list has.
_ALL = 1 << 30
_FETCH, _ACTIONS = "fetch", "actions"


def _commands() -> type[Provider]:
    from console.widgets.command_palette import ConsoleCommands

    return ConsoleCommands


class ConsoleApp(App[int]):
    """The whole screen. The engine shown is polled every `poll_s`, after a failure every `retry_s`, others seldom.

    What a view needs beside the snapshot is fetched every `fetch_s`. `recorder` is one that the clients feed; the app
    shows why it stopped. `writes` allows actions on the engine; `clock` gives monotonic seconds. `NO_COLOR` wins over
    the theme's colours.
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
        engines: Sequence[EngineApi],
        *,
        theme: ThemeName = ThemeName.DARK,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
        retry_s: float = RETRY_S,
        fetch_s: float = FETCH_S,
        writes: bool = False,
    ) -> None:
        self._plain = "NO_COLOR" in os.environ
        # Textual strips colour altogether only where it lets the terminal's own colours through.
        super().__init__(ansi_color=self._plain)
        self.sessions = [EngineSession(api, KEPT_BYTES // len(engines), fetch_s) for api in engines]
        self._shown = 0
        self._theme_name = theme
        self._theme = make_theme(theme, plain=self._plain)
        self.board = Board(self._theme)
        self._recorder = recorder
        self._clock = clock
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._writes = writes
        self._playhead = LIVE
        self._past_shown: tuple[Playhead, Moment | None, Track] | None = None
        self._open = ViewName.OVERVIEW
        self._states = {name: ViewState() for name in ViewName}
        self._view = screen_view(None, Track(), Link(engines[0].url))
        self._drawn_at = 0.0
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
        return [*super().get_line_filters(), *([AsciiFilter()] if self._theme.ascii else [])]

    def compose(self) -> ComposeResult:
        yield self.board
        yield FilterBar()
        yield NoticeBar()

    def on_mount(self) -> None:
        self.animation_level = "none"
        hear_signals(self.exit, self._driver)
        self._show()
        self.set_interval(_REDRAW_S, self._redraw_if_old)
        self.call_after_refresh(self._start_polling)

    def _start_polling(self) -> None:
        """Called after the first frame: the first poll takes a while."""
        for index in range(len(self.sessions)):
            self.run_worker(self._poll(index), name=f"health {index}", exit_on_error=True)

    @property
    def session(self) -> EngineSession:
        """The session of the engine on the screen."""
        return self.sessions[self._shown]

    @property
    def open_view(self) -> ViewName:
        """The view that fills the screen."""
        return self._open

    @property
    def state(self) -> ViewState:
        """The state of the open view."""
        return self._states[self._open]

    async def _poll(self, index: int) -> None:
        """Poll one engine for as long as the app runs; each answer becomes a message."""
        session = self.sessions[index]
        while True:
            started = self._clock()
            pause = self._poll_s
            try:
                health = await session.api.fetch()
            except Unreachable as error:
                self.post_message(SnapshotFailed(str(error), index))
                pause = self._retry_s
            else:
                self.post_message(SnapshotArrived(health, self._clock(), index))
            if index != self._shown:
                pause = max(pause, BACKGROUND_S)
            await session.pause(pause - (self._clock() - started))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self.sessions[message.engine].snapshot_arrived(Moment(message.health, message.at))
        if message.engine == self._shown:
            self._show()

    def on_snapshot_failed(self, message: SnapshotFailed) -> None:
        self.sessions[message.engine].snapshot_failed(message.reason)
        if message.engine == self._shown:
            self._show()

    def on_data_fetched(self, message: DataFetched) -> None:
        if message.engine == self._shown:
            self.session.data_fetched(message.update)
            self._show()

    def on_key(self, event: events.Key) -> None:
        # Checked by the app: a key that was pressed before the box opened reaches the box by way of the screen below.
        if isinstance(self.screen, ConfirmScreen) and not self.screen.takes(event):
            event.prevent_default()

    def on_action_done(self, message: ActionDone) -> None:
        self._notify(message.reply.message, good=message.reply.done)

    def on_input_changed(self, event: Input.Changed) -> None:
        if isinstance(event.input, FilterBar) and event.input.display:
            self._change(replace(self.state, filter=event.value))

    def on_filter_bar_closed(self, event: FilterBar.Closed) -> None:
        self.query_one(FilterBar).close()
        if not event.keep:
            self._change(replace(self.state, filter=""))

    async def on_touched(self, message: Touched) -> None:
        """A press on the footer acts as the key under it. On a panel or row it chooses; on the chosen one it opens."""
        region = message.region
        if region is Region.FOOTER:
            action = action_at(self._open, self.size.width, message.x)
            if action is not None and not message.rows:
                await self.run_action(action)
        elif region is Region.VIEW and message.rows:
            self._change(replace(self.state, offset=max(0, self.state.offset + message.rows)))
        elif region is Region.VIEW and self.board.content is not None:
            state = at_line(self.board.content, self.state, message.y - 1 - len(self.board.content.head))
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
        """Draw a frame of the current state."""
        self._drawn_at = self._clock()
        moment, track = self._moment_shown()
        age = None
        if moment is not None:
            age = self._clock() - (self._playhead.held or moment.at) + moment.health.snapshot_age_s
        self._view = screen_view(
            moment.health if moment else None,
            track,
            self._link(age),
            self.state.filter,
            textures=self._theme.textures,
            fetched=self.session.fetched,
            writes=self._writes,
        )
        self._states[self._open] = self.board.show(self._view, self._open, self.state)

    def _redraw_if_old(self) -> None:
        if self._clock() - self._drawn_at >= _REDRAW_S:
            self._show()

    def _link(self, age_s: float | None) -> Link:
        return Link(
            url=self.session.api.url,
            age_s=age_s,
            error=self.session.error,
            paused=self._playhead.paused,
            notice=self._recorder.trouble if self._recorder else None,
            place=self._place(),
            recording=self._recorder is not None and self._recorder.trouble is None,
        )

    def _selection(self) -> Selection:
        latest = self.session.timeline.latest()
        return Selection(
            self._open,
            self.state,
            self._view,
            ended=ended_requests(latest.health) if latest is not None else 0,
            at_end=self.board.at_end,
            paused=self._playhead.paused,
        )

    def _moment_shown(self) -> tuple[Moment | None, Track]:
        """The snapshot on the screen, and the rates before it."""
        timeline = self.session.timeline
        self._playhead = self._playhead.within(timeline)
        held = self._playhead.held
        if held is None:
            return timeline.latest(), self.session.history.track()
        if self._past_shown is None or self._past_shown[0] != self._playhead:
            self._past_shown = (self._playhead, timeline.at(held), timeline.track(held))
        return self._past_shown[1:]

    def _place(self) -> str:
        number, count = self._shown + 1, len(self.sessions)
        return f"{number}/{count} {self.session.name}" if count > 1 else ""

    def _change(self, state: ViewState) -> None:
        self._states[self._open] = state
        self._show()
        self.session.fetch_now()

    def _notify(self, text: str, *, good: bool) -> None:
        self.query_one(NoticeBar).say(literal(text), self._theme, good=good)

    def _play(self, playhead: Playhead) -> None:
        self._playhead = playhead
        self._show()

    async def action_quit(self) -> None:
        self.exit(0)

    def action_help(self) -> None:
        from console.widgets.help_screen import HelpScreen

        self.push_screen(HelpScreen(self._theme))

    def action_command_palette(self) -> None:
        from console.widgets.command_palette import ConsoleCommandPalette

        if not isinstance(self.screen, ConsoleCommandPalette):
            self.push_screen(ConsoleCommandPalette(placeholder="find a command", id="--command-palette"))

    def palette_commands(self) -> Iterator[Command]:
        """What the command palette offers now."""
        from console.widgets.command_palette import commands

        return commands(self._open, [(session.name, session.summary()) for session in self.sessions])

    def action_filter(self) -> None:
        self.query_one(FilterBar).open(self.state.filter)

    def action_pause(self) -> None:
        self._play(self._playhead.toggled(self.session.timeline))

    def action_step(self, seconds: int) -> None:
        self._play(self._playhead.stepped(self.session.timeline, seconds))

    def action_live(self) -> None:
        self._play(LIVE)

    def action_engine(self, index: int) -> None:
        """Show another engine, as it is now."""
        self.session.forget_fetched()
        self._shown = index
        self._past_shown = None
        self._fetch_for_view()
        self.session.poll_now()
        self._play(LIVE)

    def action_next_engine(self) -> None:
        self.action_engine((self._shown + 1) % len(self.sessions))

    def action_theme(self, name: str) -> None:
        """Change every colour and sign."""
        self._theme_name = ThemeName(name)
        self._theme = make_theme(self._theme_name, plain=self._plain)
        if not self._plain:
            self.theme = textual_name(self._theme_name)
        self.board.set_theme(self._theme)
        self._show()

    def action_next_theme(self) -> None:
        names = list(ThemeName)
        self.action_theme(names[(names.index(self._theme_name) + 1) % len(names)])

    def action_next_panel(self) -> None:
        self._choose(1)

    def action_previous_panel(self) -> None:
        self._choose(-1)

    def action_move(self, rows: int) -> None:
        content = self.board.content
        if content is None:
            self.board.scroll_chosen(rows)
        else:
            self._change(moved(content, self.state, rows, self.board.view_height))

    def action_page(self, pages: int) -> None:
        content = self.board.content
        if content is None:
            self.board.scroll_chosen(pages * _PANEL_PAGE)
        else:
            self._change(paged(content, self.state, pages, self.board.view_height))

    def action_move_to_end(self, last: bool) -> None:
        self.action_move(_ALL if last else -_ALL)

    def action_open(self) -> None:
        if self._open is ViewName.OVERVIEW:
            self.action_view(regions.OPENS[self.board.chosen])
        elif self._open is ViewName.LOG:
            self._open_request(self._selection().request())
        elif self.state.cursor is not None and self._open in regions.OPENING:
            self._change(replace(self.state, detail=self.state.cursor, offset=0))

    def action_view(self, name: str) -> None:
        self._open = ViewName(name)
        self._show()
        self._fetch_for_view()

    def _fetch_for_view(self) -> None:
        """Fetch for the open view from now on, and for no other."""
        self.workers.cancel_group(self, _FETCH)
        session, engine = self.session, self._shown

        def report(update: FetchUpdate) -> None:
            self.post_message(DataFetched(update, engine))

        if self._open is ViewName.REQUESTS:
            wanted = session.fetch_requests(lambda: self._selection().wanted_requests(), report)
            self.run_worker(wanted, group=_FETCH)
        elif self._open is ViewName.LOG:
            self.run_worker(session.fetch_log(lambda: self._selection().wanted_log(), report), group=_FETCH)

    def action_act(self, verb: str) -> None:
        """Ask for confirmation of an action on the engine; where it is not possible, say why."""
        confirmation = self._selection().confirmation(Verb(verb))
        if isinstance(confirmation, str):
            self._notify(confirmation, good=False)
            return
        action, question = confirmation
        confirm = ConfirmScreen(self._theme, question, self.session.api.url)
        self.push_screen(confirm, partial(self._confirmed, action))

    def _confirmed(self, action: EngineAction, yes: bool | None) -> None:
        if yes:
            self.run_worker(self._act(self.session, action), group=_ACTIONS)

    async def _act(self, session: EngineSession, action: EngineAction) -> None:
        self.post_message(ActionDone(await session.act(action)))

    def action_log_of_request(self) -> None:
        """The log, with only the lines of the chosen request."""
        request = self._selection().request()
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
