"""The lanes view: every lane at every size, the strip of what a request did, and one lane opened."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from console.draw import lanes_view, strips
from console.draw.theme import ThemeName
from console.history.phases import Phase, dominant
from console.history.rates import KEPT_SECONDS, History
from console.keys.views import ViewState
from console.viewmodel.build import screen_view
from console.viewmodel.labels import PHASE_LABELS
from console.viewmodel.rows import Link
from tests.console.films import STATES, Moment, film, seen, text
from tests.support import fake_health

W, R, Y, D, X = Phase.WAITING, Phase.READING, Phase.YIELDED, Phase.WRITING, Phase.RESTORING


def drawn(scene: str, seconds: float, width: int, height: int, state: ViewState | None = None) -> str:
    return text(lanes_view.content(seen(scene, seconds), state or ViewState(), width, height).body)


def test_the_strip_says_what_the_request_did_when() -> None:
    lane = seen("story", 26).past.lane(1)
    # It waited five seconds before it had its slot: known from the request's own times, since nobody saw it come.
    assert lane.phases == (W,) * 5 + (X,) * 2 + (R,) * 7 + (Y,) * 5 + (R,) * 5 + (D,) * 8
    assert lane.slot_phases == lane.phases[5:]
    (row,) = (line for line in drawn("story", 26, 116, 31).splitlines() if "↺↺" in line and "‖" in line)
    assert "timeline ┈┈┈┈┈↺↺═══════‖‖‖‖‖═════━━━━━━━━ " in row
    assert row.endswith("┈ 5.0 s  ↺ 2.0 s  ═ 12 s  ‖ 5.0 s  ━ 7.0 s  1 s a cell")


def test_the_figures_of_a_request_add_up_to_its_age() -> None:
    """Its seconds are its own: it may come late in one of the clock's."""
    body = fake_health.busy(4.0)
    request = body.lanes[0].request
    assert request is not None
    history = History()
    for at, age in ((1000.9, 0.31), (1001.15, 0.56)):
        young = replace(request, age_s=age, queue_s=0.1, ttft_s=0.2)
        history.add(replace(body, lanes=[replace(body.lanes[0], request=young)]), at)
    lane = history.track().lane(0)
    assert lane.phases == (D,)
    assert [(phase, round(seconds, 6)) for phase, seconds in lane.spent] == [(W, 0.1), (R, 0.1), (D, 0.36)]
    assert text([strips.spent(strips.spent_by_request(lane), 60, 1)]) == "┈ 0.10 s  ═ 0.10 s  ━ 0.36 s  1 s a cell"
    # And where a while was not seen.
    later = replace(request, age_s=7.5, queue_s=0.1, ttft_s=0.2)
    history.add(replace(body, lanes=[replace(body.lanes[0], request=later)]), 1008.09)
    spent = dict(history.track().lane(0).spent)
    assert spent[Phase.UNSEEN] == 6.0
    assert sum(spent.values()) == pytest.approx(7.5)


def test_what_was_not_watched_is_taken_from_the_request_or_said_to_be_unseen() -> None:
    history = History()
    history.add(fake_health.SCENES["story"](30.0), 1000.0)
    lane = history.track().lane(1)
    assert lane.phases == (W,) * 5 + (R,) * 19 + (D,) * 12
    assert lane.slot_phases == (D,)
    history.add(fake_health.SCENES["story"](34.0), 1004.0)
    assert history.track().lane(1).phases[-5:] == (D, *(Phase.UNSEEN,) * 3, D)
    body = fake_health.busy(9.0)
    request = body.lanes[0].request
    assert request is not None
    old = replace(body, lanes=[replace(body.lanes[0], request=replace(request, queue_s=None))])
    other = History()
    other.add(old, 1000.0)
    assert other.track().lane(0).phases == (*(Phase.UNSEEN,) * 9, D)


def test_a_read_that_stands_still_for_a_reason_waits() -> None:
    body = fake_health.long_read(4.0)
    still = replace(body.lanes[2], reason="waits while slot 0 reads its prompt (2,498 tokens to go)")
    history = History()
    history.add(replace(body, lanes=[still]), 1000.0)
    later = fake_health.long_read(5.0)
    history.add(replace(later, lanes=[later.lanes[2]]), 1001.0)
    assert history.track().lane(2).phases[-2:] == (W, R)


def test_the_strip_of_a_slot_outlives_its_requests_and_is_bounded() -> None:
    lane = seen("story", 26).past.lane(3)
    assert lane.phases == ()
    assert lane.slot_phases == (D,) * 22 + (Phase.IDLE,) * 5
    history = History()
    for second in (0.0, 1.0, 3.0 * KEPT_SECONDS, 3.0 * KEPT_SECONDS + 1):
        history.add(fake_health.busy(second), 1000.0 + second)
    track = history.track()
    assert len(track.lane(0).phases) == len(track.lane(3).slot_phases) == len(track.committed) == KEPT_SECONDS


def test_a_cell_shows_what_took_most_of_it() -> None:
    assert dominant([R, R, Y]) is R
    assert dominant([R, Y]) is Y
    phases = [W] * 4 + [R] * 4 + [D] * 3
    assert text([strips.strip(phases, 8, 2)]) == "┈┈══━━"
    assert text([strips.strip(phases, 3, 4)]) == "┈═━"
    assert text([strips.recent_strip(phases, 6, 2)]) == "┈┈┈══━"
    assert strips.step_for(11, 11) == 1
    assert strips.step_for(12, 11) == 2
    assert len({sign.glyph for sign in PHASE_LABELS.values()}) == len(Phase)


@pytest.mark.parametrize(
    ("scene", "width", "height", "rows"),
    [("story", 116, 31, 6), ("story", 76, 19, 4), ("crowd", 76, 19, 2), ("story", 56, 13, 2), ("crowd", 56, 13, 1)],
)
def test_every_lane_is_in_sight_in_the_roomiest_form(scene: str, width: int, height: int, rows: int) -> None:
    shown = seen(scene, 26.0)
    content = lanes_view.content(shown, ViewState(), width, height)
    assert shown.lanes is not None
    assert [row.id for row in content.rows] == [str(lane.slot) for lane in shown.lanes.lanes]
    assert len(content.body) <= height
    assert min(row.lines for row in content.rows) == rows
    for row, lane in zip(content.rows, shown.lanes.lanes, strict=True):
        assert lane.label.text in text(content.body[row.first : row.first + row.lines])


def test_a_lane_says_how_long_is_left() -> None:
    page = drawn("story", 26, 116, 31)
    # 2048 - 811 tokens at the rate of the last snapshot; 3600 - 960 at 160 a second.
    assert "45 s left at most" in page
    assert "16 s left to read" in page


def test_a_reason_is_whole_at_every_size() -> None:
    reason = "gives way to the shorter prompt in slot 3 (212 tokens to read)"
    for width, height in ((116, 31), (76, 19), (56, 13)):
        assert reason in " ".join(drawn("yielded", 12, width, height).replace("▎", " ").split())


def test_a_lane_opened_shows_every_field() -> None:
    page = drawn("story", 26, 116, 31, ViewState(detail="1"))
    for fact in (
        "req-6c01", "aider", "3,600 tok", "512 tok, 14 %", "3,600 of 3,600", "168 of at most 1,024", "5.0 s", "24 s",
        "0.21 s", "24.0 tok/s", "1.8 tok", "8,192 rows", "3,768, 46 %", "4,096 rows, 50 %", "328 rows", "90.0 MiB",
        "1,440",
    ):  # fmt: skip
        assert fact in page
    assert "┈┈┈┈┈↺↺═══════‖‖‖‖‖═════━━━━━━━━" in page
    idle = drawn("story", 26, 116, 31, ViewState(detail="3"))
    assert "none" in idle
    assert "1,460 rows" in idle


def test_an_opened_lane_that_is_filtered_away_gives_the_list_back() -> None:
    shown = seen("story", 26, "aider")
    content = lanes_view.content(shown, ViewState(detail="0", filter="aider"), 116, 31)
    assert [row.id for row in content.rows] == ["1"]


def test_a_stale_picture_promises_no_time() -> None:
    history = History()
    history.add(fake_health.SCENES["story"](26.0), 1000.0)
    stale = screen_view(fake_health.SCENES["story"](26.0), history.track(), Link("u", age_s=9.0))
    assert "left" not in text(lanes_view.content(stale, ViewState(), 116, 31).body)


def test_pictures(picture: SnapshotAssertion) -> None:
    opened = {"opened": Moment("story", 36, keys=("j", "j", "enter"))}
    for name, svg in film("2", (120, 36), STATES | opened).items():
        assert svg == picture(name=name)


def test_a_small_screen(picture: SnapshotAssertion) -> None:
    for svg in film("2", (60, 18), {"story": Moment("story", 30)}).values():
        assert svg == picture


@pytest.mark.parametrize("theme", [ThemeName.ASCII, ThemeName.COLOUR_BLIND])
def test_themes(theme: ThemeName, picture: SnapshotAssertion) -> None:
    for svg in film("2", (80, 24), {"story": Moment("story", 26)}, theme).values():
        assert svg == picture


def test_without_colour(picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for svg in film("2", (80, 24), {"story": Moment("story", 26)}).values():
        assert svg == picture
