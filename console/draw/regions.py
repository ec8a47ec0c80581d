"""Regions as lines: the single entry to the drawing, for the app's widgets and for the printed frame."""

from __future__ import annotations

from collections.abc import Callable

from console.draw import (
    footer,
    header,
    lanes,
    lanes_view,
    log_view,
    memory_view,
    panels,
    queue_view,
    requests_view,
    roles_view,
    rounds_view,
)
from console.draw.arrange import Arrangement, Box, Facts, Region
from console.draw.frame import SIDE_CELLS, PanelContent
from console.keys.views import ViewName, ViewState
from console.text.spans import Line, wrap
from console.viewmodel.rows import ScreenView

# The views in which a row can be opened.
OPENING = frozenset({ViewName.LANES, ViewName.QUEUE, ViewName.REQUESTS})

# The view that shows a panel of the overview at length.
OPENS = {
    Region.LANES: ViewName.LANES,
    Region.POOL: ViewName.MEMORY,
    Region.MEMORY: ViewName.MEMORY,
    Region.QUEUE: ViewName.QUEUE,
    Region.ROLES: ViewName.ROLES,
}


def facts(view: ScreenView, width: int, *, alone: bool = False) -> Facts:
    """The facts of the frame that decide the arrangement on a screen `width` cells wide."""
    if view.lanes is None or view.pool is None:
        return Facts(lanes=4, pool_slots=4, alone=alone)
    reason_width = max(10, width - 15)
    return Facts(
        lanes=view.lanes.slots or 4,
        reasons=sum(len(wrap(lane.reason, reason_width)) for lane in view.lanes.lanes if lane.busy and lane.reason),
        pool_slots=len(view.pool.slots) or 4,
        queued=min(2, view.queue_total),
        alone=alone,
    )


def panel_content(region: Region, view: ScreenView, arrangement: Arrangement) -> PanelContent:
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
        case Region.HEADER | Region.FOOTER | Region.VIEW:
            raise ValueError(f"{region} is no panel")


def view_content(name: ViewName, view: ScreenView, state: ViewState, box: Box) -> PanelContent:
    """The content of a view other than the overview; before there is a snapshot, why there is none."""
    width = max(1, box.width - SIDE_CELLS)
    if view.lanes is None:
        return PanelContent(name.value, body=lanes.nobody(view, width))
    return _CONTENT[name](view, state, width, max(0, box.height - 2))


_CONTENT: dict[ViewName, Callable[[ScreenView, ViewState, int, int], PanelContent]] = {
    ViewName.LANES: lanes_view.content,
    ViewName.QUEUE: queue_view.content,
    ViewName.MEMORY: memory_view.content,
    ViewName.ROLES: roles_view.content,
    ViewName.REQUESTS: requests_view.content,
    ViewName.ROUNDS: rounds_view.content,
    ViewName.LOG: log_view.content,
}


def parts_shown(region: Region, view: ScreenView) -> tuple[object, ...]:
    """The parts of the frame that the region draws. While they are equal, so are its lines."""
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
        case Region.VIEW:
            return (view,)
        case Region.FOOTER:
            return (view.link.url,)


def bar(
    region: Region, view: ScreenView, arrangement: Arrangement, name: ViewName = ViewName.OVERVIEW
) -> tuple[Line, ...]:
    """The lines of a region without a frame, exactly as many and as wide as its box, while view `name` is open."""
    box = arrangement.boxes[region]
    lines = header.header(view, box.width) if region is Region.HEADER else footer.footer(view, box.width, name)
    return lines[: box.height]
