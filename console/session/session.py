"""One engine as the console watches it: its snapshots, what was fetched for the open view, and the actions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from console.history.rates import History
from console.history.recent import KEPT_BYTES, RecentHistory
from console.history.timeline import Moment, Timeline
from console.session.api import LOG_PAGE, EngineAction, EngineApi, NotFound, RequestsQuery, Unreachable
from console.session.fetched import (
    NOTHING_FETCHED,
    Fetched,
    FetchUpdate,
    LogFailed,
    LogReceived,
    RequestReceived,
    RequestsFailed,
    RequestsReceived,
    RequestsWanted,
    with_update,
)
from engine.protocol import ActionReply

POLL_S = 0.25
RETRY_S = 1.0
# Seconds between two polls of an engine that is not on the screen.
BACKGROUND_S = 5.0
FETCH_S = 1.0
# Between two pages of a log that the console is behind with.
_NEXT_PAGE_S = 0.02
_LEAST_PAUSE_S = 0.05

Report = Callable[[FetchUpdate], object]


class EngineSession:
    """State of one engine. The app's message handlers alone change it; the fetch loops only report.

    `kept_bytes` bounds the memory for past snapshots, `fetch_s` is the pause between two fetches of the open view.
    """

    def __init__(self, api: EngineApi, kept_bytes: int = KEPT_BYTES, fetch_s: float = FETCH_S) -> None:
        self.api = api
        self.recent = RecentHistory(kept_bytes=kept_bytes)
        self.history = History()
        self.fetched: Fetched = NOTHING_FETCHED
        self.error: str | None = None
        self._fetch_s = fetch_s
        self._poll_now = asyncio.Event()
        self._fetch_now = asyncio.Event()

    @property
    def name(self) -> str:
        """The address without its scheme."""
        return self.api.url.partition("://")[2]

    @property
    def timeline(self) -> Timeline:
        return self.recent

    def snapshot_arrived(self, moment: Moment) -> None:
        self.recent.add(moment.health, moment.at)
        self.history.add(moment.health, moment.at)
        self.error = None

    def snapshot_failed(self, reason: str) -> None:
        self.error = reason

    def data_fetched(self, update: FetchUpdate) -> None:
        self.fetched = with_update(self.fetched, update)

    def forget_fetched(self) -> None:
        """Drop what was fetched: the engine leaves the screen."""
        self.fetched = NOTHING_FETCHED

    def summary(self) -> str:
        """The last answer in a few words."""
        latest = self.recent.latest()
        if self.error is not None or latest is None:
            return self.error or "not asked yet"
        parallel = latest.health.parallel
        return f"{latest.health.status.value}, {parallel.running} running, {parallel.waiting} waiting"

    def poll_now(self) -> None:
        """Cut the pause before the next snapshot short."""
        self._poll_now.set()

    def fetch_now(self) -> None:
        """Cut the pause before the next fetch for the open view short."""
        self._fetch_now.set()

    async def pause(self, seconds: float) -> None:
        """Wait before the next snapshot, at most until `poll_now`."""
        await _wait(self._poll_now, max(_LEAST_PAUSE_S, seconds))

    async def fetch_requests(self, wanted: Callable[[], RequestsWanted | None], report: Report) -> None:
        """Fetch what the requests view wants, until cancelled; fetch nothing while it wants None."""
        while True:
            want = wanted()
            if want is not None:
                try:
                    await self._fetch_wanted(want, report)
                except Unreachable as error:
                    report(RequestsFailed(_failure("ledger", error)))
            await _wait(self._fetch_now, self._fetch_s)

    async def fetch_log(self, wanted: Callable[[], int | None], report: Report) -> None:
        """Fetch log lines later than the number wanted, until cancelled; fetch nothing while that is None."""
        while True:
            after = wanted()
            pause = self._fetch_s
            if after is not None:
                try:
                    page = await self.api.fetch_log(after)
                except Unreachable as error:
                    report(LogFailed(_failure("log", error)))
                else:
                    report(LogReceived(after, page))
                    if len(page.lines) >= LOG_PAGE:
                        pause = _NEXT_PAGE_S
            await _wait(self._fetch_now, pause)

    async def act(self, action: EngineAction) -> ActionReply:
        """The reply to an action; where no answer came, one that says so."""
        try:
            return await self.api.act(action)
        except Unreachable as error:
            return ActionReply(done=False, message=f"{action.verb} {action.target}: {error}")

    async def _fetch_wanted(self, want: RequestsWanted, report: Report) -> None:
        if want.newest:
            report(RequestsReceived(want, await self.api.fetch_requests(RequestsQuery(want.query))))
        if want.before is not None:
            older = await self.api.fetch_requests(RequestsQuery(want.query, want.before))
            report(RequestsReceived(want, older, older=True))
        if want.opened is not None:
            # The ledger has no row of a request that still runs.
            with suppress(NotFound):
                report(RequestReceived(await self.api.fetch_request(want.opened)))


async def _wait(cut_short: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await cut_short.wait()
    cut_short.clear()


def _failure(what: str, error: Unreachable) -> str:
    """Why something could not be fetched. It is named, because snapshots may arrive all the same."""
    return str(error) if isinstance(error, NotFound) else f"the {what} cannot be read: {error}"
