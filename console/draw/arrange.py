"""Where each region of the screen goes at a given size: pure arithmetic, shared by the app and the one-frame print."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

HEADER_ROWS = 2
FOOTER_ROWS = 1
BORDER_ROWS = 2
NARROW = 72
SHORT = 20
WIDE = 160
# The fewest rows, borders included, that the panels under the lanes are left with; and wanted by the lanes' form.
_LEAST_BELOW = 8
_ROOM_BELOW = {3: 14, 2: 10, 1: 9}


class Region(StrEnum):
    HEADER = "header"
    LANES = "lanes"
    POOL = "pool"
    MEMORY = "memory"
    QUEUE = "queue"
    ROLES = "roles"
    VIEW = "view"
    FOOTER = "footer"


PANELS = (Region.LANES, Region.POOL, Region.MEMORY, Region.QUEUE, Region.ROLES)


class Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Facts:
    """What of the content decides the arrangement: kept this small so that the screen seldom moves.

    `reasons` counts lanes that carry a reason line; `pool_slots` the slots that the pool lists,
    `queued` the waiting requests, of which two are given room for a sentence each. `alone` asks for one view
    over the whole body in place of the panels.
    """

    lanes: int = 0
    reasons: int = 0
    pool_slots: int = 0
    queued: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Arrangement:
    """A box for every region shown, and how many rows each lane takes (1, 2 or 3)."""

    boxes: dict[Region, Box]
    lane_form: int


def arrange(width: int, height: int, facts: Facts) -> Arrangement:
    """Place the regions on a screen of `width` x `height` cells."""
    body = max(0, height - HEADER_ROWS - FOOTER_ROWS)
    boxes = {
        Region.HEADER: Box(0, 0, width, min(HEADER_ROWS, height)),
        Region.FOOTER: Box(0, height - FOOTER_ROWS, width, FOOTER_ROWS),
    }
    if facts.alone:
        boxes[Region.VIEW] = Box(0, HEADER_ROWS, width, body)
        return Arrangement(boxes, 3)
    if width < NARROW or height < SHORT:
        return Arrangement(boxes | _narrow(width, body, facts), 1)
    form = _form(body, facts)
    lanes = _lane_rows(form, facts)
    lanes = max(BORDER_ROWS + 1, min(lanes, body - _LEAST_BELOW))
    placed = _wide(width, body, lanes, facts) if width >= WIDE else _normal(width, body, lanes, facts)
    return Arrangement(boxes | placed, form)


def _lane_rows(form: int, facts: Facts) -> int:
    return max(1, facts.lanes) * form + facts.reasons + BORDER_ROWS


def _form(body: int, facts: Facts) -> int:
    """The roomiest form in which every lane shows while the panels below keep their room.

    Reason rows do not count: a lane that starts to wait must not change how all the others look.
    """
    lanes = max(1, facts.lanes)
    return next((form for form in (3, 2) if lanes * form + BORDER_ROWS + _ROOM_BELOW[form] <= body), 1)


def _pool_rows(facts: Facts) -> int:
    # A total, a row a slot, kinds, counters.
    return BORDER_ROWS + 3 + max(1, facts.pool_slots)


def _normal(width: int, body: int, lanes: int, facts: Facts) -> dict[Region, Box]:
    """Lanes over the whole width; below them pool beside memory, then queue beside roles."""
    rest = body - lanes
    queue = BORDER_ROWS + 3 * min(2, max(1, facts.queued))
    upper = min(_pool_rows(facts), max(4, rest // 2 + rest % 2 if rest >= 2 * queue else rest - queue))
    lower = rest - upper
    left = width // 2
    wide_left = max(left, round(width * 0.56))
    y = HEADER_ROWS
    return {
        Region.LANES: Box(0, y, width, lanes),
        Region.POOL: Box(0, y + lanes, left, upper),
        Region.MEMORY: Box(left, y + lanes, width - left, upper),
        Region.QUEUE: Box(0, y + lanes + upper, wide_left, lower),
        Region.ROLES: Box(wide_left, y + lanes + upper, width - wide_left, lower),
    }


def _wide(width: int, body: int, lanes: int, facts: Facts) -> dict[Region, Box]:
    """Lanes over the queue at the left; pool, memory and roles stacked at the right."""
    left = round(width * 0.6)
    right = width - left
    pool = min(_pool_rows(facts), body // 3)
    memory = min(10, (body - pool) // 2)
    y = HEADER_ROWS
    return {
        Region.LANES: Box(0, y, left, lanes),
        Region.QUEUE: Box(0, y + lanes, left, body - lanes),
        Region.POOL: Box(left, y, right, pool),
        Region.MEMORY: Box(left, y + pool, right, memory),
        Region.ROLES: Box(left, y + pool + memory, right, body - pool - memory),
    }


def _narrow(width: int, body: int, facts: Facts) -> dict[Region, Box]:
    """One column, most urgent first; what does not fit is a digit key away."""
    boxes: dict[Region, Box] = {}
    lanes = min(_lane_rows(1, facts), max(BORDER_ROWS + 1, body - 8), body)
    y = HEADER_ROWS
    boxes[Region.LANES] = Box(0, y, width, lanes)
    rest = body - lanes
    y += lanes
    pair = 4 if rest >= 8 else 3
    if rest >= pair + 3 and width >= 24:
        half = width // 2
        queue = rest - pair
        boxes[Region.QUEUE] = Box(0, y, width, queue)
        boxes[Region.POOL] = Box(0, y + queue, half, pair)
        boxes[Region.MEMORY] = Box(half, y + queue, width - half, pair)
    elif rest >= BORDER_ROWS + 1:
        boxes[Region.QUEUE] = Box(0, y, width, rest)
    return boxes
