"""Who may stay connected: caps in all and for an address, who makes way at a cap, and limits for slow clients."""

from __future__ import annotations

import heapq
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from uvicorn.server import ServerState

from engine.config import ServiceConfig
from engine.process.descriptors import connections_within, soft_limit
from engine.process.listening import is_loopback

log = logging.getLogger("tandem.http")

OWNER_CONNECTIONS = 32
"""Through the owner's socket: the supervisor's probe, commands and consoles, none of which a client can crowd out."""

SHARE_OF_AN_ADDRESS = 4
"""An address that is not this machine's gets a quarter of the connections."""

BATCH = 32
"""At a cap this part of it makes way at once, so that a flood does not search the table for each newcomer."""

BYTES_A_SECOND = 16 << 10
"""A body or an answer may take a second more for each so many bytes that moved."""

TELL_EVERY_S = 60.0


class Wait(IntEnum):
    """What a connection waits for its client to do. At a cap the lowest kind makes way, the longest wait first."""

    FIRST_REQUEST = 0
    NEXT_REQUEST = 1
    BODY = 2
    READING = 3


class Closed(StrEnum):
    """Why a connection was ended by this side before its client was done."""

    REFUSED = "refused"
    EVICTED = "evicted"
    SLOW_HEAD = "slow_head"
    SLOW_BODY = "slow_body"
    SLOW_READER = "slow_reader"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`connections` over TCP in all, `per_address` of them for one address that is not this machine's. `head_s` is the
    longest that a request's line and headers may take, `stall_s` what a body, or an answer that waits to be read, may
    take beside a second for each `BYTES_A_SECOND`."""

    connections: int
    per_address: int
    head_s: float
    stall_s: float

    @classmethod
    def of(cls, service: ServiceConfig) -> ConnectionLimits:
        """The limits that the settings name, never more connections than the process has descriptors for."""
        most = connections_within(soft_limit())
        wanted = service.connections
        if wanted is not None and wanted > most:
            log.warning("TANDEM_CONNECTIONS is %d; the limit of file descriptors holds %d", wanted, most)
        connections = most if wanted is None else min(wanted, most)
        share = service.connections_per_address or max(1, connections // SHARE_OF_AN_ADDRESS)
        return cls(connections, min(share, connections), service.head_timeout_s, service.stall_timeout_s)

    def stalled(self, seconds: float, moved: int) -> bool:
        """Whether `moved` bytes are too few for `seconds`: bytes that trickle extend the time, but not for long."""
        return seconds > self.stall_s + moved / BYTES_A_SECOND


class Member(Protocol):
    """A connection as the table sees it. `since` is when it began to wait."""

    since: float

    def waits_for(self) -> Wait | None:
        """None while it is being answered: then it never makes way."""
        ...

    def evict(self) -> None: ...

    def check(self, now: float) -> None:
        """End it where a time limit has passed."""
        ...


class _Group:
    """Connections that share a cap."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.members: set[Member] = set()


class ConnectionTable:
    """The connections of one server. Event loop only, but for `open` and `closed`, which anyone may read. Those in
    `discarding` read a body that nobody wants."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.closed: Counter[Closed] = Counter(dict.fromkeys(Closed, 0))
        self.discarding: set[Member] = set()
        self._all = _Group(limits.connections)
        self._owner = _Group(OWNER_CONNECTIONS)
        self._addresses: dict[str, _Group] = {}
        self._groups: dict[Member, tuple[str | None, tuple[_Group, ...]]] = {}
        self._told_at = -TELL_EVERY_S
        self._told = self.closed.total()

    @property
    def open(self) -> int:
        return len(self._groups)

    def enter(self, member: Member, address: str | None) -> bool:
        """Take a connection in; `address` is None for the owner's socket. Where a cap is reached, connections that wait
        for their clients make way. False where none does: the newcomer must go."""
        key = None if address is None else _network(address)
        groups: tuple[_Group, ...] = (self._owner,)
        if key is not None:
            limit = self.limits.connections if is_loopback(key) else self.limits.per_address
            groups = (self._addresses.get(key) or _Group(limit), self._all)
        for group in groups:
            if len(group.members) >= group.limit and not self._make_room(group):
                self.closed[Closed.REFUSED] += 1
                return False
        for group in groups:
            group.members.add(member)
        if key is not None:
            self._addresses[key] = groups[0]
        self._groups[member] = (key, groups)
        return True

    def leave(self, member: Member) -> None:
        """Give its place back; nothing where it has none."""
        self.discarding.discard(member)
        key, groups = self._groups.pop(member, (None, ()))
        for group in groups:
            group.members.discard(member)
        if key is not None and not groups[0].members:
            self._addresses.pop(key, None)

    def _make_room(self, group: _Group) -> bool:
        waiting = [(wait, member) for member in group.members if (wait := member.waits_for()) is not None]
        if not waiting:
            return False
        kind = min(wait for wait, _ in waiting)
        # Whoever has not asked yet loses nothing; of the others no more go than must.
        count = max(1, group.limit // BATCH) if kind is Wait.FIRST_REQUEST else 1
        going = heapq.nsmallest(count, (m for wait, m in waiting if wait is kind), key=lambda member: member.since)
        for member in going:
            self.leave(member)
            self.closed[Closed.EVICTED] += 1
            member.evict()
        return True

    def sweep(self) -> None:
        """End what is too slow. To be called every second or so."""
        now = self.clock()
        for member in list(self._groups):
            member.check(now)
        total = self.closed.total()
        if total > self._told and now - self._told_at >= TELL_EVERY_S:
            counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in self.closed.items() if count)
            log.warning("connections: %d open; ended since start: %s", self.open, counts)
            self._told, self._told_at = total, now


class TableState(ServerState):
    """What uvicorn's connections share, and the table with it."""

    def __init__(self, table: ConnectionTable) -> None:
        super().__init__()
        self.table = table


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the first 64 bits, all of which one machine has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4 or parsed.is_loopback:
        return address
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)).network_address)
