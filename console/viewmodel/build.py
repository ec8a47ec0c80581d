"""Builds the view model of a frame from a Health snapshot and its history; each part has a file beside this one.

Nothing here knows a width, a colour or a terminal. Text from outside is made literal on its way through.
"""

from __future__ import annotations

from console.history.rates import Track
from console.session.fetched import NOTHING_FETCHED, Fetched
from console.text.spans import literal
from console.viewmodel.header import header
from console.viewmodel.lanes import lane_view, loading
from console.viewmodel.memory import memory, pool
from console.viewmodel.queue import WaitingQueue
from console.viewmodel.roles import role
from console.viewmodel.rounds import rounds
from console.viewmodel.rows import LanesView, Link, ScreenView
from engine.protocol import Health


def screen_view(
    health: Health | None,
    track: Track,
    link: Link,
    filter_text: str = "",
    *,
    textures: bool = False,
    fetched: Fetched = NOTHING_FETCHED,
    writes: bool = False,
) -> ScreenView:
    """The whole frame. `filter_text` keeps lanes and waiting requests whose client, id or state contains it.

    `textures` asks for fills that differ by glyph, for a screen without colour. `fetched` is what was fetched beyond
    the snapshot for the open view; `writes`: the console may act on the engine.
    """
    top = header(health, track, link)
    if health is None:
        return ScreenView(link, top, fetched=fetched, writes=writes)
    wanted = filter_text.casefold().strip()
    lanes = tuple(lane_view(slot, track.lane(slot.slot), stale=link.stale) for slot in health.lanes)
    queue = WaitingQueue(health.queue)
    if wanted:
        queue = queue.matching(lambda entry: _matches(wanted, entry.client, entry.id, entry.label.text))
    parallel = health.parallel
    return ScreenView(
        link=link,
        header=top,
        lanes=LanesView(
            lanes=tuple(
                lane for lane in lanes if _matches(wanted, lane.client, lane.request, lane.label.text, lane.text)
            ),
            busy=sum(lane.busy for lane in lanes),
            slots=len(lanes),
            note=literal(parallel.max_running_reason) if parallel.max_running_reason else None,
            rounds=tuple(sorted(parallel.rounds.items(), key=lambda item: (len(item[0]), item[0]))),
            filter_text=literal(filter_text.strip()),
        ),
        loading=loading(health),
        pool=pool(health),
        memory=memory(health.memory),
        roles=tuple(role(entry) for entry in health.roles),
        queue=queue,
        queue_total=len(health.queue),
        rounds=rounds(health),
        past=track,
        textures=textures,
        fetched=fetched,
        writes=writes,
    )


def _matches(wanted: str, *texts: str) -> bool:
    return not wanted or any(wanted in text.casefold() for text in texts)
