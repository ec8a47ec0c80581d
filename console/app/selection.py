"""What is selected on the screen: the request or role under the cursor, the action on it, the data to fetch."""

from __future__ import annotations

from dataclasses import dataclass

from console.keys.views import ViewName, ViewState
from console.session.api import EngineAction, Verb
from console.session.fetched import RequestsWanted, find_row, requests_wanted
from console.viewmodel.confirmations import Question, question
from console.viewmodel.labels import STATUS_LABELS
from console.viewmodel.rows import ScreenView
from engine.protocol import Status

_CHOOSE = {
    Verb.CANCEL: "choose a request first (↑ ↓)",
    Verb.LOAD: "choose a role first (↑ ↓)",
    Verb.UNLOAD: "choose a role first (↑ ↓)",
}
WRITING_IS_OFF = "writing is off; a console started with --write can do this"


@dataclass(frozen=True)
class Selection:
    """The open view with its state and frame. `ended` counts the requests that ended so far; `at_end`: the last rows
    of the list are in sight; `paused`: the picture is held."""

    name: ViewName
    state: ViewState
    view: ScreenView
    ended: int = 0
    at_end: bool = False
    paused: bool = False

    def request(self) -> str | None:
        """The id of the request that is opened or under the cursor. In the lanes view it is the request in the chosen
        slot; before a slot is chosen, the first request that runs."""
        key = self.state.detail or self.state.cursor
        if self.name is ViewName.LANES:
            lanes = self.view.lanes.lanes if self.view.lanes is not None else ()
            return next((lane.request for lane in lanes if lane.busy and key in (None, str(lane.slot))), None)
        if key is None:
            return None
        match self.name:
            case ViewName.REQUESTS:
                row = find_row(self.view.fetched.requests, key)
                return row.id if row is not None else key
            case ViewName.LOG:
                return next((line.request for line in self.view.fetched.log.lines if str(line.seq) == key), None)
            case ViewName.QUEUE:
                return key
            case _:
                return None

    def action(self, verb: Verb) -> EngineAction | None:
        """The action on what the cursor stands on; None where it stands on nothing that fits. Draining acts on the
        engine, and resumes one that drains already."""
        if verb is Verb.DRAIN:
            drains = self.view.header.status == STATUS_LABELS[Status.DRAINING]
            return EngineAction(Verb.RESUME if drains else Verb.DRAIN, "the engine")
        target = self.request() if verb is Verb.CANCEL else self._role()
        return EngineAction(verb, target) if target is not None else None

    def confirmation(self, verb: Verb) -> tuple[EngineAction, Question] | str:
        """The action and the question to confirm it; or a sentence that says why it is not possible."""
        action = self.action(verb)
        if action is None:
            return _CHOOSE[verb]
        if not self.view.writes:
            return WRITING_IS_OFF
        asked = question(action, self.view)
        return asked if isinstance(asked, str) else (action, asked)

    def wanted_requests(self) -> RequestsWanted | None:
        """What to ask the ledger for; None where nothing."""
        if self.paused:
            return None
        fetched, detail = self.view.fetched.requests, self.state.detail
        opened: str | None = None
        if detail is not None and find_row(fetched, detail) is None and not self.view.is_live(detail):
            opened = detail.partition(" ")[0]
        return requests_wanted(
            fetched,
            self.state.filter.strip(),
            self.ended,
            at_end=self.at_end and detail is None,
            opened=opened,
        )

    def wanted_log(self) -> int | None:
        """The number of the last log line known; None where no later ones are wanted."""
        return None if self.paused else self.view.fetched.log.next

    def _role(self) -> str | None:
        return self.state.cursor if self.name is ViewName.ROLES else None
