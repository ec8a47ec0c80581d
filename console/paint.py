"""One region of one frame as lines: the single place where the app's panels and the printed frame meet the drawing."""

from __future__ import annotations

from console.arrange import PANELS, Arrangement, Facts, Region
from console.draw import header, lanes, panels
from console.draw.frame import SIDE_CELLS, Frame, Sheet, framed
from console.spans import Line, wrap
from console.view import ScreenView


def facts(view: ScreenView, width: int, zoom: Region | None = None) -> Facts:
    """What of the frame decides the arrangement at a screen `width` cells wide."""
    if view.lanes is None or view.pool is None:
        return Facts(lanes=4, pool_slots=4, zoom=zoom)
    reason_width = max(10, width - 14)
    return Facts(
        lanes=view.lanes.slots,
        reasons=sum(len(wrap(lane.reason, reason_width)) for lane in view.lanes.lanes if lane.busy and lane.reason),
        pool_slots=len(view.pool.slots),
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


def lines(
    region: Region, view: ScreenView, arrangement: Arrangement, offset: int = 0, focused: Region | None = None
) -> tuple[Line, ...]:
    """The region's lines, exactly as many and as wide as its box."""
    box = arrangement.boxes[region]
    if region is Region.HEADER:
        return header.header(view, box.width)[: box.height]
    if region is Region.FOOTER:
        return header.footer(view, box.width)[: box.height]
    frame = Frame(box.width, box.height, offset, PANELS.index(region) + 1, focused is region)
    return framed(sheet(region, view, arrangement), frame)
