"""Between the views and the engine: feeds the view that is open, and carries the orders that a person confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.app import App
from textual.message import Message

from console.asks import Act, Desk, Unreachable, Verb
from console.draw.request_detail import find, is_live
from console.feeding import FEED_S, Feeding
from console.feeds import NOTHING_FED, Came, Fed, RequestsWanted, folded, requests_wanted
from console.orders import Question, question
from console.screen import ScreenView
from console.views import ViewName, ViewState
from console.words import STATUS_WORDS
from engine.protocol import ActionReply, Status

_FEED, _ORDERS = "feed", "orders"
_CHOOSE = {
    Verb.CANCEL: "choose a request first (↑ ↓)",
    Verb.LOAD: "choose a role first (↑ ↓)",
    Verb.UNLOAD: "choose a role first (↑ ↓)",
}
WRITING_IS_OFF = "writing is off; a console started with --write can do this"


@dataclass(frozen=True)
class Seen:
    """What a person has before them: the view that is open and how it stands. `ended` counts requests that ended so
    far, `at_end` says that the last rows of the list are in sight."""

    name: ViewName
    state: ViewState
    view: ScreenView | None
    ended: int
    at_end: bool
    paused: bool


@dataclass
class FeedCame(Message):
    """Something that the open view asked for."""

    came: Came


@dataclass
class OrderDone(Message):
    """What the engine answered to an order."""

    reply: ActionReply


class Clerk:
    """Works for one app; `seen` tells what is on its screen. `writes` allows orders."""

    def __init__(
        self, app: App[int], desk: Desk, seen: Callable[[], Seen], *, writes: bool, every_s: float = FEED_S
    ) -> None:
        self.fed: Fed = NOTHING_FED
        self.writes = writes
        self._app = app
        self._desk = desk
        self._seen = seen
        self._every_s = every_s
        self._feeding: Feeding | None = None

    def attend(self, name: ViewName) -> None:
        """Feed that view from now on, and no other."""
        self._app.workers.cancel_group(self._app, _FEED)
        feeding = Feeding(self._desk, lambda came: self._app.post_message(FeedCame(came)), self._every_s)
        if name is ViewName.REQUESTS:
            self._app.run_worker(feeding.requests(self._requests_wanted), group=_FEED)
        elif name is ViewName.LOG:
            self._app.run_worker(feeding.log(self._log_wanted), group=_FEED)
        self._feeding = feeding

    def turn_to(self, desk: Desk) -> None:
        """Work on another engine: what was fetched from the last one is forgotten."""
        self._desk = desk
        self.fed = NOTHING_FED
        self.attend(self._seen().name)

    def take(self, came: Came) -> None:
        """Keep what came."""
        self.fed = folded(self.fed, came)

    def nudge(self) -> None:
        """Something changed that may want other rows: look at once."""
        if self._feeding is not None:
            self._feeding.nudge()

    def order(self, verb: Verb) -> Question | str:
        """What is asked before `verb` is carried out on what is chosen; or a sentence that says why it cannot be."""
        act = self.chosen(verb)
        seen = self._seen()
        if act is None or seen.view is None:
            return _CHOOSE.get(verb, "there is no snapshot yet")
        if not self.writes:
            return WRITING_IS_OFF
        return question(act, seen.view)

    def chosen(self, verb: Verb) -> Act | None:
        """The act on what the cursor stands on, None where it stands on nothing that fits; one on the engine always.
        Draining an engine that drains is to let it serve again."""
        if verb is Verb.DRAIN:
            view = self._seen().view
            drains = view is not None and view.header.status == STATUS_WORDS[Status.DRAINING]
            return Act(Verb.RESUME if drains else Verb.DRAIN, "the engine")
        target = self.request() if verb is Verb.CANCEL else self._role()
        return Act(verb, target) if target is not None else None

    def request(self) -> str | None:
        """The id of the request that is opened or chosen; in the lanes view, of the request in the chosen slot, and
        before one is chosen in the first that has one."""
        seen = self._seen()
        key = seen.state.detail or seen.state.cursor
        if seen.view is None:
            return None
        if seen.name is ViewName.LANES:
            lanes = seen.view.lanes.lanes if seen.view.lanes is not None else ()
            return next((lane.request for lane in lanes if lane.busy and key in (None, str(lane.slot))), None)
        if key is None:
            return None
        match seen.name:
            case ViewName.REQUESTS:
                row = find(self.fed.requests, key)
                return row.id if row is not None else key
            case ViewName.LOG:
                return next((line.request for line in self.fed.log.lines if str(line.seq) == key), None)
            case ViewName.QUEUE:
                return key
            case _:
                return None

    def carry_out(self, act: Act) -> None:
        """Send an order; its answer comes as OrderDone."""
        self._app.run_worker(self._act(act), group=_ORDERS)

    async def _act(self, act: Act) -> None:
        try:
            reply = await self._desk.act(act)
        except Unreachable as error:
            reply = ActionReply(done=False, message=f"{act.verb} {act.target}: {error}")
        self._app.post_message(OrderDone(reply))

    def _role(self) -> str | None:
        seen = self._seen()
        return seen.state.cursor if seen.name is ViewName.ROLES else None

    def _requests_wanted(self) -> RequestsWanted | None:
        seen = self._seen()
        if seen.paused:
            return None
        fed, detail = self.fed.requests, seen.state.detail
        opened: str | None = None
        if detail is not None and find(fed, detail) is None and not (seen.view and is_live(seen.view, detail)):
            opened = detail.partition(" ")[0]
        return requests_wanted(
            fed, seen.state.filter.strip(), seen.ended, at_end=seen.at_end and detail is None, opened=opened
        )

    def _log_wanted(self) -> int | None:
        return None if self._seen().paused else self.fed.log.next
