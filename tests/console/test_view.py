"""What a snapshot says on the screen: history and view model, no terminal involved."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from console.history.rates import History, Track, total_tok_s
from console.viewmodel.build import screen_view
from console.viewmodel.labels import LANE_LABELS, ROLE_LABELS, STATUS_LABELS, WAIT_LABELS
from console.viewmodel.rows import Link, ScreenView
from engine.protocol import Health, LaneState, RoleState, Status, WaitState
from tests.support import fake_health
from tests.support.fake_health import MIB, SCENES

LINK = Link("http://127.0.0.1:8000", age_s=0.1)


def view(health: Health, link: Link = LINK, track: Track | None = None, filter_text: str = "") -> ScreenView:
    return screen_view(health, track or Track(), link, filter_text)


def played(scene: str, seconds: int) -> Track:
    history = History()
    for quarter in range(4 * seconds + 1):
        history.add(SCENES[scene](quarter / 4), 1000.0 + quarter / 4)
    return history.track()


def test_every_state_has_its_own_glyph_and_word() -> None:
    for labels, states in (
        (STATUS_LABELS, Status),
        (LANE_LABELS, LaneState),
        (WAIT_LABELS, WaitState),
        (ROLE_LABELS, RoleState),
    ):
        assert set(labels) == set(states)
        assert len({label.text for label in labels.values()}) == len(labels)
    assert len({label.glyph for label in LANE_LABELS.values()}) == len(LANE_LABELS)


def test_history_keeps_a_mean_a_second() -> None:
    track = played("busy", 10)
    assert len(track.total) == 11
    last_second = [total_tok_s(fake_health.busy(9 + quarter / 4)) for quarter in range(4)]
    assert track.total[9] == pytest.approx(sum(last_second) / 4)
    assert len(track.lane(0).rates) == 11
    assert track.lane(3).rates == ()


def test_history_measures_reading_from_what_was_read() -> None:
    track = played("long_read", 10)
    assert track.lane(2).reading
    assert track.lane(2).reading_tok_s == pytest.approx(230.0, rel=0.01)
    assert played("yielded", 10).lane(2).reading_tok_s is None


def test_history_shows_a_gap_as_nothing_and_a_restart_as_a_beginning() -> None:
    history = History()
    history.add(fake_health.busy(10.0), 1000.0)
    history.add(fake_health.busy(14.0), 1004.0)
    assert [rate > 0 for rate in history.track().total] == [True, False, False, False, True]
    history.add(fake_health.busy(0.0), 1005.0)
    assert len(history.track().total) == 1


def test_history_starts_over_with_another_request_in_the_lane() -> None:
    history = History()
    body = fake_health.busy(5.0)
    history.add(body, 1000.0)
    history.add(fake_health.busy(6.0), 1001.0)
    request = body.lanes[0].request
    assert request is not None
    other = replace(body.lanes[0], request=replace(request, id="req-other"))
    history.add(replace(fake_health.busy(7.0), lanes=[other, *body.lanes[1:]]), 1002.0)
    assert len(history.track().lane(0).rates) == 1
    assert len(history.track().lane(1).rates) == 3


def test_a_reading_lane_says_how_long_is_left() -> None:
    shown = view(fake_health.long_read(10.0), track=played("long_read", 10))
    assert shown.lanes is not None
    lane = shown.lanes.lanes[2]
    assert (lane.read_done, lane.read_total) == (2300, 7680)
    assert lane.left_s == pytest.approx(23.4, rel=0.02)


def test_an_idle_lane_has_no_reason_and_keeps_rows() -> None:
    shown = view(fake_health.idle(1.0))
    assert shown.lanes is not None
    assert [(lane.busy, lane.kept, lane.rows) for lane in shown.lanes.lanes[:2]] == [
        (False, 384, 384),
        (False, 2210, 2210),
    ]
    assert shown.lanes.busy == 0


def test_a_phase_text_too_long_for_its_column_keeps_its_rate() -> None:
    body = fake_health.long_read(5.0)
    lane = replace(body.lanes[2], phase_text="Reading 12,288 of 95,131, 410 tok/s")
    shown = view(replace(body, lanes=[lane, replace(lane, phase_text="Reading 0 of 95,131")])).lanes
    assert shown is not None
    assert [lane.short for lane in shown.lanes] == ["Reading, 410 tok/s", "Reading"]


def test_the_pool_adds_up_and_shares_the_reserve_by_window() -> None:
    shown = view(fake_health.busy(5.0)).pool
    assert shown is not None
    assert sum(slot.held for slot in shown.slots) == shown.committed == sum(held for _, held in shown.kinds)
    assert sum(slot.pages for slot in shown.slots) == shown.pages
    for slot in shown.slots:
        assert slot.share == pytest.approx(slot.held / (fake_health.WINDOW * fake_health.ROW_BYTES))


def test_memory_adds_up_to_the_total() -> None:
    body = fake_health.busy(5.0)
    shown = view(body).memory
    assert shown is not None
    assert sum(part.held for part in shown.parts) + shown.unnamed + shown.available == shown.total
    for lost, named in ((64 * MIB, 0), (640 * MIB, 640 * MIB)):
        grown = view(replace(body, memory=replace(body.memory, available=body.memory.available - lost))).memory
        assert grown is not None
        assert grown.unnamed == named


def test_the_filter_matches_client_id_or_state() -> None:
    body = fake_health.waiting(5.0)

    def kept(text: str) -> tuple[list[int], list[str]]:
        shown = view(body, filter_text=text)
        assert shown.lanes is not None
        return [lane.slot for lane in shown.lanes.lanes], [entry.id for entry in shown.queue]

    assert kept("") == ([0, 1, 2, 3], ["req-91aa", "req-91ab"])
    assert kept(" WEBUI ") == ([1], ["req-91aa"])
    assert kept("req-91ab") == ([], ["req-91ab"])
    assert kept("reading") == ([3], [])
    assert kept("memory") == ([], ["req-91ab"])
    assert kept("日本") == ([], ["req-91ab"])


def test_a_stale_picture_shows_no_rate() -> None:
    body = fake_health.busy(5.0)
    for link in (Link("u", age_s=3.5), Link("u", age_s=0.3, error="connection refused")):
        shown = view(body, link, played("busy", 5))
        assert shown.lanes is not None
        assert [lane.text for lane in shown.lanes.lanes] == ["Writing", "Writing", "Writing", "Idle"]
        assert all(lane.left_s is None for lane in shown.lanes.lanes)
        assert shown.header.stale
    assert view(body, Link("u", age_s=3.5)).header.freshness == "no update for 3.5 s"
    assert not view(body).header.stale


def test_trouble_is_named_and_no_trouble_is_not() -> None:
    body = fake_health.busy(5.0)
    assert view(body).header.trouble == ()
    totals = replace(body.parallel.totals, errors=2, timeouts=1)
    stalled = replace(
        body, status=Status.STALLED, last_progress_age_s=31.0, parallel=replace(body.parallel, totals=totals)
    )
    assert view(stalled).header.trouble == ("no progress for 31 s", "errors 2", "timeouts 1")


def test_a_request_waiting_for_its_own_slot_names_it() -> None:
    body = fake_health.waiting(5.0)
    own = replace(body.queue[0], state=WaitState.HOME, home=2)
    assert view(replace(body, queue=[own])).queue[0].label.text == "waits for slot 2, its own"


def test_without_a_snapshot_only_the_link_speaks() -> None:
    shown = screen_view(None, Track(), Link("http://x", error="connection refused"))
    assert shown.lanes is None
    assert (shown.header.status.text, shown.header.freshness) == ("lost", "connection refused")
    assert screen_view(None, Track(), Link("http://x")).header.status.text == "connecting"


def test_all_but_app_and_widgets_works_without_textual() -> None:
    program = "import sys, console.once; print('textual' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
