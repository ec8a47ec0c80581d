"""`--replay`: the console over a recording in place of an engine."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding

from console.app.app import ConsoleApp
from console.draw.scrub import clock_of
from console.draw.theme import ThemeName
from console.history.rates import Track
from console.history.recorder import NotARecording
from console.history.tape import Tape
from console.history.timeline import Moment
from console.keys.actions import REPLAY_ACTIONS
from console.session.api import LOG_PAGE, EngineAction, NotFound, RequestsQuery, Unreachable
from console.text.spans import literal
from console.viewmodel.rows import Link
from console.widgets.help_screen import HelpScreen
from console.widgets.scrub_bar import ScrubBar, TimeBar
from engine.protocol import ActionReply, Health, LedgerRow, LogPage, RequestsPage

TICK_S = 0.1
# Seconds between two looks at how far the file reaches.
REFRESH_S = 1.0

_NOT_HERE = "not in a recording"


class RecordedEngine:
    """The `EngineApi` of a recording: it has no ledger, no log and no actions."""

    def __init__(self, path: Path) -> None:
        self.url = path.name

    async def fetch(self) -> Health:
        raise Unreachable(_NOT_HERE)

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage:
        raise NotFound(_NOT_HERE)

    async def fetch_request(self, request_id: str) -> LedgerRow:
        raise NotFound(_NOT_HERE)

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage:
        raise NotFound(_NOT_HERE)

    async def act(self, action: EngineAction) -> ActionReply:
        raise Unreachable(_NOT_HERE)


class ReplayApp(ConsoleApp):
    """The same screen over a tape. The tape's position is the app's clock."""

    BINDINGS = [Binding(action.keys, action.name, action.label, show=False) for action in REPLAY_ACTIONS]  # noqa: RUF012

    def __init__(self, recorded: RecordedEngine, tape: Tape, *, theme: ThemeName = ThemeName.DARK) -> None:
        super().__init__([recorded], theme=theme, clock=lambda: tape.position)
        self._tape = tape
        self._scrub = ScrubBar()
        self._jumped = False
        self._lost: str | None = None
        self._trouble: str | None = None

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield self._scrub
        yield TimeBar()

    async def _poll(self, index: int) -> None:
        """Draw frames as the tape moves."""
        ticks = 0
        while True:
            if ticks % round(REFRESH_S / TICK_S) == 0:
                self._refresh_tape()
            ticks += 1
            self._show()
            await asyncio.sleep(TICK_S)

    def _show(self) -> None:
        super()._show()
        self._scrub.show(self._tape.view(), self._theme)

    def _moment_shown(self) -> tuple[Moment | None, Track]:
        try:
            state = self._tape.state()
            self._lost = state.error
            moment = Moment(state.health, state.at) if state.health is not None else None
            position = self._tape.position
            # After a jump the picture comes first; the rates before it are read for the next frame.
            self._jumped = not self._jumped and not self._tape.carries(position)
            return moment, Track() if self._jumped else self._tape.track(position)
        except NotARecording as error:
            self._trouble = str(error)
            return None, Track()

    def _link(self, age_s: float | None) -> Link:
        return Link(
            url=self.session.api.url,
            age_s=age_s,
            error=self._trouble or self._lost,
            place=self.session.api.url,
            recorded=clock_of(self._tape.position),
        )

    def _refresh_tape(self) -> None:
        try:
            self._tape.refresh()
        except NotARecording as error:
            self._trouble = str(error)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self._theme, {"in a recording": REPLAY_ACTIONS}))

    def action_pause(self) -> None:
        self._tape.toggle()
        self._show()

    def action_step(self, seconds: int) -> None:
        self._tape.step(seconds)

    def action_live(self) -> None:
        self.action_go_to_end(True)

    def action_go_to_end(self, last: bool) -> None:
        begin, end = self._tape.begin, self._tape.end
        self._tape.go_to(end if last else begin)

    def action_faster(self, steps: int) -> None:
        self._tape.faster(steps)
        self._show()

    def action_ask_time(self) -> None:
        self.query_one(TimeBar).open()

    def on_time_bar_asked(self, message: TimeBar.Asked) -> None:
        found = moment_of(message.text, self._tape.position, self._tape.begin, self._tape.end)
        if isinstance(found, str):
            self._notify(found, good=False)
        else:
            self._tape.go_to(found)


def moment_of(text: str, position: float, begin: float, end: float) -> float | str:
    """The moment between `begin` and `end` that a time of day means, the nearest to `position` where there are several
    days; or a sentence that says why there is none. Times are local, `HH:MM` or `HH:MM:SS`."""
    for form in ("%H:%M:%S", "%H:%M"):
        try:
            time = datetime.strptime(text.strip(), form).time()
            break
        except ValueError:
            continue
    else:
        return f"{literal(text)!r} is no time; allowed: HH:MM or HH:MM:SS"
    day = datetime.fromtimestamp(begin).date()
    found: list[float] = []
    while day <= datetime.fromtimestamp(end).date():
        when = datetime.combine(day, time).timestamp()
        # The first second of a recording begins before its first snapshot.
        if begin - 1 <= when <= end:
            found.append(max(begin, when))
        day += timedelta(days=1)
    if not found:
        return f"{time} is not in the recording, which goes from {clock_of(begin)} to {clock_of(end)}"
    return min(found, key=lambda when: abs(when - position))
