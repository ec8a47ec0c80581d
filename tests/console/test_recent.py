"""The half hour behind: what comes back is what was seen, the bounds hold, and rates are those of that moment."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from console.history.recent import RecentHistory
from engine.protocol import Health, Queued, WaitState
from tests.support import fake_health

START = 1000.0


def waiting_at(t: float, waiting: range) -> Health:
    """A snapshot at second `t` whose queue holds those that arrived at the seconds in `waiting`."""
    queue = [
        Queued(
            id=f"req-{arrived}",
            state=WaitState.SLOT,
            reason=f"all 3 slots are busy, {arrived} came first",
            since_s=round(t - arrived, 2),
            prompt_tokens=arrived,
            max_tokens=256,
            home=None,
            client="curl",
        )
        for arrived in waiting
    ]
    return replace(fake_health.busy(t), queue=queue)


def played(past: RecentHistory, seconds: int, step: float = 0.25) -> list[tuple[float, Health]]:
    seen = []
    for tick in range(int(seconds / step)):
        t = tick * step
        health = waiting_at(t, range(max(0, int(t) - 20), int(t)))
        past.add(health, START + t)
        seen.append((START + t, health))
    return seen


def test_what_comes_back_is_what_was_seen() -> None:
    past = RecentHistory()
    seen = played(past, 70)
    assert past.span() == (seen[0][0], seen[-1][0])
    for at, health in seen:
        moment = past.at(at)
        assert moment is not None
        assert (moment.health, moment.at) == (health, at)
    newest = past.latest()
    assert newest is not None
    assert newest.health is seen[-1][1]


def test_between_snapshots_the_one_before_was_on_the_screen() -> None:
    past = RecentHistory()
    assert past.at(START) is None
    assert past.span() is None
    assert past.latest() is None
    past.add(fake_health.busy(0.0), START)
    past.add(fake_health.idle(9.0), START + 9.0)
    found = [past.at(when) for when in (START - 5.0, START, START + 8.9, START + 9.0, START + 99.0)]
    assert [moment.at - START for moment in found if moment] == [0.0, 0.0, 0.0, 9.0, 9.0]


def test_what_is_older_than_kept_is_forgotten() -> None:
    past = RecentHistory(kept_s=20.0)
    played(past, 100)
    span = past.span()
    assert span is not None
    # Whole blocks are dropped, and a block is half a minute long.
    assert 20.0 <= span[1] - span[0] <= 50.0
    oldest = past.at(0.0)
    assert oldest is not None
    assert oldest.at == span[0]


def test_the_bytes_kept_are_bounded_and_small() -> None:
    bounded = RecentHistory(kept_bytes=60_000)
    seen = played(bounded, 150, step=0.5)
    assert bounded.held_bytes <= 60_000
    free = RecentHistory()
    played(free, 150, step=0.5)
    assert free.held_bytes > 60_000
    whole = sum(len(msgspec.json.encode(health)) for _, health in seen)
    assert free.held_bytes < whole / 8
    moment = bounded.at(0.0)
    assert moment is not None
    assert moment.health.queue


def test_the_rates_are_those_of_the_moment() -> None:
    past = RecentHistory()
    for second in range(60):
        past.add(fake_health.busy(float(second)), START + second)
    track = past.track(START + 20.0)
    assert len(track.total) == 21
    assert track == past.track(START + 20.9)
    assert len(past.track(START + 59.0).total) == 60
