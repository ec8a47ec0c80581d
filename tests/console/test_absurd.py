"""Figures no engine should send: nothing raises, hangs or leaves its box, whatever the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from console.draw import regions
from console.draw.arrange import PANELS, Region, arrange
from console.draw.frame import Frame, framed
from console.history.rates import History
from console.keys.views import ViewName, ViewState
from console.session.fetched import Fetched, FetchedLog, FetchedRequests
from console.text import figures
from console.text.spans import Line, width_of
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link, ScreenView
from engine.protocol import Finish, LedgerRow, LogLine, decode_health, encode
from tests.support.fake_health import SCENES

_WILD = {
    "huge": lambda value: 10**30 if isinstance(value, int) else 1e300,
    "negative": lambda value: -abs(value) - 1,
    "very negative": lambda value: -(10**15) if isinstance(value, int) else -1e15,
    "nothing": lambda value: type(value)(0),
}


def changed(value: object, wild: Callable[[float], float]) -> object:
    """Every number of a body put through `wild`."""
    if isinstance(value, dict):
        return {name: changed(inner, wild) for name, inner in value.items()}
    if isinstance(value, list):
        return [changed(inner, wild) for inner in value]
    return wild(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def row(number: float) -> LedgerRow:
    whole = int(number)
    return LedgerRow(
        id="r",
        client="c",
        model="m",
        slot=whole,
        arrived_at=number,
        finished_at=number,
        prompt_tokens=whole,
        cached_tokens=whole,
        cache_source="lane",
        completion_tokens=whole,
        max_tokens=whole,
        finish=Finish.STOP,
        reason=None,
        queue_s=number,
        ttft_s=number,
        prefill_s=number,
        decode_s=number,
        total_s=number,
        tok_s=number,
        worst_gap_s=number,
        route=None,
    )


def view_of(scene: str, wild: Callable[[float], float]) -> ScreenView:
    body = json.dumps(changed(json.loads(encode(SCENES[scene](9.0))), wild)).encode()
    health = decode_health(body)
    history = History()
    for at in (100.0, 100.3, 101.3):
        history.add(health, at)
    number = float(wild(1.0))
    line = LogLine(seq=1, at=number, level="info", event="e", text="t", request=None)
    fetched = Fetched(FetchedRequests(rows=(row(number),), total=1), FetchedLog((line,), 2, answered=True))
    return screen_view(health, history.track(), Link("u", age_s=0.1), fetched=fetched)


def lines_of(view: ScreenView, width: int, height: int) -> list[tuple[int, Line]]:
    """Every line of the overview and of every view, with the width that its box has; rows are opened too."""
    lines: list[tuple[int, Line]] = []
    overview = arrange(width, height, regions.facts(view, width))
    for region, box in overview.boxes.items():
        if region in PANELS:
            drawn = framed(regions.panel_content(region, view, overview), Frame(box.width, box.height))
        else:
            drawn = regions.bar(region, view, overview)
        lines += [(box.width, line) for line in drawn]
    box = arrange(width, height, regions.facts(view, width, alone=True)).boxes[Region.VIEW]
    for name in ViewName:
        if name is not ViewName.OVERVIEW:
            content = regions.view_content(name, view, ViewState(), box)
            opened = [regions.view_content(name, view, ViewState(detail=row.id), box) for row in content.rows[:1]]
            for shown in (content, *opened):
                lines += [(box.width, line) for line in framed(shown, Frame(box.width, box.height))]
    return lines


@pytest.mark.parametrize("wild", _WILD)
@pytest.mark.parametrize("scene", ["waiting", "drafting", "devices", "loading"])
def test_absurd_numbers_are_drawn_within_their_boxes(scene: str, wild: str) -> None:
    view = view_of(scene, _WILD[wild])
    for width, height in ((80, 24), (24, 8)):
        assert all(width_of(line) == room for room, line in lines_of(view, width, height))


@pytest.mark.parametrize("at", [1e300, -1e300, 1e18])
def test_a_time_no_calendar_has_is_a_dash(at: float) -> None:
    assert figures.clock_time(at) == figures.day(at) == figures.NONE
