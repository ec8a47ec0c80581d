"""Messages from the app's workers to its handlers."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from console.session.fetched import FetchUpdate
from engine.protocol import ActionReply, Health


@dataclass
class SnapshotArrived(Message):
    """A snapshot of the engine with that index, and when it came by the app's clock."""

    health: Health
    at: float
    engine: int = 0


@dataclass
class SnapshotFailed(Message):
    """A poll that brought no snapshot, and why."""

    reason: str
    engine: int = 0


@dataclass
class DataFetched(Message):
    """Something that the open view fetches."""

    update: FetchUpdate
    engine: int = 0


@dataclass
class ActionDone(Message):
    """The engine's reply to an action."""

    reply: ActionReply
