"""What a view shows beyond `/health`: fetched only while that view is open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fed:
    """What was fetched so far, for the views that ask for more than the snapshot."""


NOTHING_FED = Fed()
