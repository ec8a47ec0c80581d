"""One engine as the console knows it: whom to ask, what it said so far, and what failed last."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from console.asks import Desk
from console.history import History
from console.past import KEPT_BYTES, Past
from console.timeline import Moment, Timeline
from engine.protocol import Health

POLL_S = 0.25
RETRY_S = 1.0
# How often an engine that is not on the screen is asked.
ASIDE_S = 5.0
# The share of a core that an open console may take, and the slowest that it asks for that: a change is on the screen
# within 400 ms all the same. A large screen with hundreds of requests on a slow box comes to it.
_SHARE = 0.042
_SLOWEST_S = 0.37
_LEAST_PAUSE_S = 0.05


def paced(poll_s: float, cost_s: float) -> float:
    """Seconds from one question to the next where a snapshot takes `cost_s` of processor time to fetch and draw."""
    return max(poll_s, min(cost_s / _SHARE, _SLOWEST_S))


class HealthSource(Desk, Protocol):
    """Where snapshots come from, and what answers the other questions; raises Unreachable."""

    url: str

    async def fetch(self) -> Health: ...


class Watched:
    """Filled by the app's message handlers alone."""

    def __init__(self, source: HealthSource, kept_bytes: int = KEPT_BYTES) -> None:
        self.source = source
        self.past = Past(kept_bytes=kept_bytes)
        self.history = History()
        self.error: str | None = None
        self._hurry = asyncio.Event()

    @property
    def name(self) -> str:
        """The address without what all addresses have."""
        return self.source.url.partition("://")[2]

    @property
    def timeline(self) -> Timeline:
        return self.past

    def arrived(self, moment: Moment) -> None:
        """Take in a snapshot."""
        self.past.add(moment.health, moment.at)
        self.history.add(moment.health, moment.at)
        self.error = None

    def missed(self, reason: str) -> None:
        """Take in that an attempt brought nothing."""
        self.error = reason

    def said(self) -> str:
        """How it stood when it was asked last, in a few words."""
        latest = self.past.latest()
        if self.error is not None or latest is None:
            return self.error or "not asked yet"
        parallel = latest.health.parallel
        return f"{latest.health.status.value}, {parallel.running} running, {parallel.waiting} waiting"

    def hurry(self) -> None:
        """Have it asked at once rather than when its turn comes."""
        self._hurry.set()

    async def pause(self, seconds: float) -> None:
        """Wait before the next question, until it is wanted at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_LEAST_PAUSE_S, seconds)):
                await self._hurry.wait()
        self._hurry.clear()
