"""Fetches for the view that is open what `/health` does not say: one loop a view that asks and tells what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from console.asks import LOG_PAGE, Desk, RequestsQuery, Unknown, Unreachable
from console.feeds import (
    Came,
    LogCame,
    LogMissed,
    RequestCame,
    RequestsCame,
    RequestsMissed,
    RequestsWanted,
)

FEED_S = 1.0
# Between the pages of a log that is caught up with: long enough for the one before to be taken in.
_NEXT_PAGE_S = 0.02


class Feeding:
    """Asks one desk. `tell` gets what came; `every_s` is the pause after an answer, which `nudge` cuts short."""

    def __init__(self, desk: Desk, tell: Callable[[Came], object], every_s: float = FEED_S) -> None:
        self._desk = desk
        self._tell = tell
        self._every_s = every_s
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        self._nudged.set()

    async def requests(self, wanted: Callable[[], RequestsWanted | None]) -> None:
        """Bring what the requests view wants, until cancelled; ask nothing while it wants None."""
        while True:
            want = wanted()
            if want is not None:
                try:
                    await self._bring(want)
                except Unreachable as error:
                    self._tell(RequestsMissed(_unread("ledger", error)))
            await self._pause(self._every_s)

    async def _bring(self, want: RequestsWanted) -> None:
        if want.newest:
            self._tell(RequestsCame(want, await self._desk.fetch_requests(RequestsQuery(want.query))))
        if want.before is not None:
            older = await self._desk.fetch_requests(RequestsQuery(want.query, want.before))
            self._tell(RequestsCame(want, older, older=True))
        if want.opened is not None:
            # Until a request that runs has ended, the ledger has no row of it.
            with suppress(Unknown):
                self._tell(RequestCame(await self._desk.fetch_request(want.opened)))

    async def log(self, wanted: Callable[[], int | None]) -> None:
        """Bring log lines later than the number wanted, until cancelled; ask nothing while that is None."""
        while True:
            after = wanted()
            pause = self._every_s
            if after is not None:
                try:
                    page = await self._desk.fetch_log(after)
                except Unreachable as error:
                    self._tell(LogMissed(_unread("log", error)))
                else:
                    self._tell(LogCame(after, page))
                    if len(page.lines) >= LOG_PAGE:
                        pause = _NEXT_PAGE_S
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nudged.wait(), seconds)
        self._nudged.clear()


def _unread(what: str, error: Unreachable) -> str:
    """Why something could not be read, by its name: the snapshots may well come meanwhile."""
    return str(error) if isinstance(error, Unknown) else f"the {what} cannot be read: {error}"
