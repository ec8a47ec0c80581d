"""Tells systemd how the service is: ready, alive, stopping. Does nothing where no systemd asked for it.

The protocol is sd_notify(3): datagrams of `NAME=VALUE` lines to the socket in `NOTIFY_SOCKET`, an abstract one where
its name starts with `@`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from engine.process.standstill import standstill
from engine.protocol import Health

EVERY_S = 5.0
"""How often the state is told, unless the watchdog wants to hear more."""

SILENT_LOAD_S = 1800.0
"""How long loading may go on with no progress before no more time is asked for. A compiler may run for minutes."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """The way to systemd. `address` None: nobody listens. `watchdog_s`: within which time it must hear that the engine
    moves."""

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def take(cls) -> Notifier:
        """From the environment of this process, which then no longer has it: it is not for children."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        wanted = os.environ.pop("WATCHDOG_USEC", None)
        meant = os.environ.pop("WATCHDOG_PID", None)
        watched = wanted is not None and wanted.isdigit() and int(wanted) > 0 and meant in (None, str(os.getpid()))
        return cls(address, int(wanted) / 1e6 if watched and wanted else None)

    def tell(self, **fields: str | int) -> None:
        """Send one datagram. A systemd that cannot be reached is no reason to fail."""
        if not self.address or self.address[0] not in "/@":
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way,
        ):
            way.setblocking(False)
            way.sendto("\n".join(f"{key}={value}" for key, value in fields.items()).encode(), name)

    def extend(self, seconds: float) -> None:
        """Ask for time: to start, or to stop."""
        self.tell(EXTEND_TIMEOUT_USEC=int(seconds * 1e6))

    def stopping(self, seconds: float) -> None:
        """The end has begun and may take as long."""
        self.tell(STOPPING=1, STATUS="ending", EXTEND_TIMEOUT_USEC=int(seconds * 1e6))

    async def keep_told(self, health: Callable[[], Health], clock: Callable[[], float]) -> None:
        """Until cancelled: ask for time while the model loads, then say ready, then that the engine moves while it
        does. A stuck engine thread is not spoken for, though this loop goes on."""
        if not self.address:
            return
        every = min(EVERY_S, self.watchdog_s / 3) if self.watchdog_s else EVERY_S
        ready = False
        last, since = "", clock()
        while True:
            seen = health()
            if seen.loading is not None:
                now = f"{seen.loading.stage} {seen.loading.done_bytes}"
                last, since = now, since if now == last else clock()
                if clock() - since < SILENT_LOAD_S:
                    self.extend(every * 4)
                self.tell(STATUS=f"loading: {seen.loading.stage}")
            else:
                words = _words(seen)
                # A stuck engine was ready once: what keeps it from moving is the watchdog's to act on.
                self.tell(**({} if ready else {"READY": 1}), STATUS=words)
                ready = True
                if self.watchdog_s and standstill(seen) is None:
                    self.tell(WATCHDOG=1)
            await asyncio.sleep(every if ready else min(every, 0.25))


def _words(health: Health) -> str:
    stuck = standstill(health)
    if stuck is not None:
        return f"stuck: {stuck}"
    parallel = health.parallel
    return f"{health.status.value}: {parallel.running} of {parallel.slots} slots busy, {parallel.waiting} waiting"


def unit_name() -> str | None:
    """The systemd unit that this process runs in, by its control group; None where there is none to be seen."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as groups:
            last = groups.read().strip().splitlines()[-1].rpartition("/")[2]
    except (OSError, IndexError):
        return None
    return last if last.endswith(".service") else None
