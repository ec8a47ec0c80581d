"""The views: their names, keys and titles, and what a person did in each (where the cursor is, what is filtered)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ViewName(StrEnum):
    """One key, one full-screen picture."""

    OVERVIEW = "overview"
    LANES = "lanes"
    QUEUE = "queue"
    MEMORY = "memory"
    ROLES = "roles"
    REQUESTS = "requests"
    ROUNDS = "rounds"
    LOG = "log"


@dataclass(frozen=True)
class ViewSpec:
    """How a view is reached and what it is for, in one sentence."""

    name: ViewName
    key: str
    help: str


VIEWS: tuple[ViewSpec, ...] = (
    ViewSpec(ViewName.OVERVIEW, "1", "Everything at a glance."),
    ViewSpec(ViewName.LANES, "2", "Each slot at length: phase, progress, rates, window and pages."),
    ViewSpec(ViewName.QUEUE, "3", "Each waiting request, its reason and its age."),
    ViewSpec(ViewName.MEMORY, "4", "Where the memory went, page by page."),
    ViewSpec(ViewName.ROLES, "5", "The small models beside the engine: their states and reasons."),
    ViewSpec(ViewName.REQUESTS, "6", "The requests that ended, and how each did."),
    ViewSpec(ViewName.ROUNDS, "7", "The rounds: how many slots, how long, how many tokens."),
    ViewSpec(ViewName.LOG, "8", "What the engine says."),
)

DIGITS = {spec.name: int(spec.key) for spec in VIEWS}


@dataclass(frozen=True)
class ViewState:
    """What a person did in one view.

    `cursor` is the id of the row it stands on, so that it stays with its row when others come and go; None where no
    row was chosen yet. `offset` is the first body line shown, `detail` the id of the row that is opened, `filter`
    what rows must contain.
    """

    cursor: str | None = None
    offset: int = 0
    detail: str | None = None
    filter: str = ""
