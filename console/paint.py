"""One region of one frame as lines: the single place where the app's panels and the printed frame meet the drawing."""

from __future__ import annotations

from console.arrange import Arrangement, Facts, Region
from console.draw import header, lanes, panels
from console.draw.frame import SIDE_CELLS, Sheet
from console.screen import ScreenView
from console.spans import Line, wrap


def facts(view: ScreenView, width: int, zoom: Region | None = None) -> Facts:
    """What of the frame decides the arrangement at a screen `width` cells wide."""
    if view.lanes is None or view.pool is None:
        return Facts(lanes=4, pool_slots=4, zoom=zoom)
    reason_width = max(10, width - 15)
    return Facts(
        lanes=view.lanes.slots or 4,
        reasons=sum(len(wrap(lane.reason, reason_width)) for lane in view.lanes.lanes if lane.busy and lane.reason),
        pool_slots=len(view.pool.slots) or 4,
        queued=min(2, view.queue_total),
        zoom=zoom,
    )


def sheet(region: Region, view: ScreenView, arrangement: Arrangement) -> Sheet:
    """The content of a framed panel for the box that the arrangement gives it."""
    box = arrangement.boxes[region]
    width, height = box.width - SIDE_CELLS, box.height - 2
    match region:
        case Region.LANES:
            return lanes.lanes(view, width, arrangement.lane_form)
        case Region.POOL:
            return panels.pool(view, width, height)
        case Region.MEMORY:
            return panels.memory(view, width, height)
        case Region.QUEUE:
            return panels.queue(view, width)
        case Region.ROLES:
            return panels.roles(view, width)
        case Region.HEADER | Region.FOOTER:
            raise ValueError(f"{region} has no frame")


def parts_shown(region: Region, view: ScreenView) -> tuple[object, ...]:
    """All of the frame that the region draws from: while this is equal, so are its lines."""
    missing = (view.lanes is None, view.textures)
    match region:
        case Region.HEADER:
            return (view.header, view.link.url, *missing)
        case Region.LANES:
            return (view.lanes, view.loading, view.header.freshness if view.lanes is None else "", *missing)
        case Region.POOL:
            return (view.pool, *missing)
        case Region.MEMORY:
            return (view.memory, *missing)
        case Region.QUEUE:
            return (view.queue, view.queue_total, *missing)
        case Region.ROLES:
            return (view.roles, *missing)
        case Region.FOOTER:
            return (view.link.url,)


def bar(region: Region, view: ScreenView, arrangement: Arrangement) -> tuple[Line, ...]:
    """The lines of a region without a frame, exactly as many and as wide as its box."""
    box = arrangement.boxes[region]
    draw = header.header if region is Region.HEADER else header.footer
    return draw(view, box.width)[: box.height]
