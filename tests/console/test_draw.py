"""The drawing: every region fills its box to the cell at any size, and reasons are never cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from console.draw import regions
from console.draw.arrange import PANELS, Arrangement, Box, Facts, Region, arrange
from console.draw.frame import Frame, framed
from console.history.rates import Track
from console.once import frame_lines
from console.text.spans import width_of
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link, ScreenView
from engine.protocol import Health, LaneState
from tests.support import fake_health
from tests.support.fake_health import SCENES

LINK = Link("http://127.0.0.1:8000", age_s=0.1)
sizes = st.tuples(st.integers(1, 260), st.integers(1, 80))


def view(health: Health) -> ScreenView:
    return screen_view(health, Track(), LINK)


@settings(deadline=None)
@given(
    sizes,
    st.builds(
        Facts,
        lanes=st.integers(0, 20),
        reasons=st.integers(0, 5),
        pool_slots=st.integers(0, 20),
        queued=st.integers(0, 2),
        alone=st.booleans(),
    ),
)
def test_regions_stay_on_the_screen_and_apart(size: tuple[int, int], facts: Facts) -> None:
    width, height = size
    boxes = arrange(width, height, facts).boxes
    taken: set[tuple[int, int]] = set()
    for box in boxes.values():
        if height >= 4:
            assert box.x >= 0
            assert box.y >= 0
            assert box.x + box.width <= width
            assert box.y + box.height <= height
            cells = {(x, y) for x in (box.x, box.x + box.width - 1) for y in range(box.y, box.y + box.height)}
            assert not cells & taken
            taken |= cells
        assert box.width >= 0


@pytest.mark.parametrize(("width", "height", "form"), [(80, 24, 2), (120, 36, 3), (60, 18, 1), (200, 50, 3)])
def test_the_usual_sizes_show_every_panel(width: int, height: int, form: int) -> None:
    arrangement = arrange(width, height, Facts(lanes=4, pool_slots=4))
    assert arrangement.lane_form == form
    missing = set(PANELS) - set(arrangement.boxes)
    assert missing == ({Region.ROLES} if width == 60 else set())
    assert sum(box.width * box.height for box in arrangement.boxes.values()) == width * height


def test_a_reason_does_not_change_the_form_of_the_lanes() -> None:
    assert arrange(80, 24, Facts(lanes=4, reasons=2)).lane_form == arrange(80, 24, Facts(lanes=4)).lane_form


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from(sorted(SCENES)), st.booleans())
def test_every_region_fills_its_box(size: tuple[int, int], scene: str, textures: bool) -> None:
    shown = screen_view(SCENES[scene](7.0), Track(), LINK, textures=textures)
    arrangement = arrange(*size, regions.facts(shown, size[0]))
    for region, box in arrangement.boxes.items():
        if region in PANELS:
            lines = framed(regions.panel_content(region, shown, arrangement), Frame(box.width, box.height, 3, 1, True))
        else:
            lines = regions.bar(region, shown, arrangement)
        assert len(lines) == box.height
        assert {width_of(line) for line in lines} <= {box.width}


def text_of(region: Region, shown: ScreenView, width: int) -> str:
    form = arrange(width, 200, regions.facts(shown, width)).lane_form
    arrangement = Arrangement({region: Box(0, 0, width, 200)}, form)
    lines = framed(regions.panel_content(region, shown, arrangement), Frame(width, 200))
    joined = " ".join("".join(span.text for span in line).strip("│╭╮╰╯─ ▎") for line in lines)
    return re.sub(r"\s+", " ", joined)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_reasons_are_shown_in_full(width: int) -> None:
    waiting = fake_health.waiting(3.0)
    text = text_of(Region.QUEUE, view(waiting), width)
    for entry in waiting.queue:
        assert entry.reason in text
    yielded = fake_health.yielded(3.0)
    reason = yielded.lanes[2].reason
    assert reason is not None
    assert reason in text_of(Region.LANES, view(yielded), width)
    roles = text_of(Region.ROLES, view(waiting), width)
    for role in waiting.roles:
        assert role.reason in roles


def test_many_slots_share_the_rows_there_are() -> None:
    lanes = [fake_health.writing(slot, 5.0, rate=30.0, client=f"client-{slot}") for slot in range(16)]
    shown = view(fake_health.health(5.0, lanes))
    arrangement = arrange(120, 36, regions.facts(shown, 120))
    assert arrangement.lane_form == 1
    content = regions.panel_content(Region.LANES, shown, arrangement)
    assert len(content.body) == 16
    pool = regions.panel_content(Region.POOL, shown, arrangement)
    text = "\n".join("".join(span.text for span in line) for line in pool.body)
    assert all(f"{slot:>2} " in text for slot in range(16))


def test_the_printed_frame_holds_everything_in_order() -> None:
    text = "\n".join("".join(span.text for span in line) for line in frame_lines(view(fake_health.waiting(5.0)), 100))
    order = ["◆ tandem", "╭─ lanes", "╭─ kv pool", "╭─ memory", "╭─ queue", "╭─ roles", "shadow-reader"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert "▼" not in text.replace("▼ Reading", "")


def test_a_lane_word_stands_for_every_state() -> None:
    for state in LaneState:
        lane = replace(fake_health.writing(0, 5.0, rate=30.0, client="x"), state=state, phase_text="")
        text = text_of(Region.LANES, view(fake_health.health(5.0, [lane])), 100)
        assert {
            LaneState.IDLE: "○ Idle",
            LaneState.RESTORING: "↺ Restoring",
            LaneState.PREFILLING: "▼ Reading",
            LaneState.YIELDED: "‖ Yielded",
            LaneState.DECODING: "▶ Writing",
            LaneState.FINISHING: "■ Finishing",
        }[state] in text
