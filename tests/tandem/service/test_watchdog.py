"""The watchdog over histories on a fake clock: which engines are left alone, restarted, and given up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tandem.service.watchdog import (
    Decision,
    Done,
    GiveUp,
    Nothing,
    Policy,
    ProbeResult,
    Restart,
    WatchState,
    exited,
    probed,
    started,
)

OK, LOADING, DRAINING, STUCK, SILENT = (
    ProbeResult.OK,
    ProbeResult.LOADING,
    ProbeResult.DRAINING,
    ProbeResult.STUCK,
    ProbeResult.SILENT,
)
POLICY = Policy()


@dataclass(frozen=True)
class Ended:
    """The process ended by itself."""

    code: int


Event = ProbeResult | Ended


@dataclass(frozen=True)
class History:
    """Events as (times, event): each takes a probe's time. `pauses` are the restarts that must follow, and `end` the
    last decision where the watching ends before the events do."""

    events: list[tuple[int, Event]]
    pauses: list[float]
    end: type[Decision] = Nothing
    every_s: float = POLICY.probe_s


HISTORIES = {
    "healthy": History([(3, LOADING), (1000, OK)], []),
    # An answer after 4 s is an answer: the probe says OK and merely takes longer.
    "slow": History([(3, LOADING), (200, OK)], [], every_s=9.0),
    "slow, now and then too slow": History([(1, OK), *[(2, SILENT), (1, OK)] * 50], []),
    "loading for 900 s, saying so": History([(180, LOADING), (10, OK)], []),
    "loading for 900 s without a word": History([(180, SILENT), (10, OK)], []),
    "loading for 900 s, heard now and then": History([*[(59, SILENT), (1, LOADING)] * 3, (10, OK)], []),
    "loading again after a crash": History([(1, OK), (1, Ended(-11)), (180, LOADING), (1, OK)], [1.0]),
    "never done loading": History([(363, SILENT)], [1.0]),
    "draining": History([(10, OK), (200, DRAINING), (1, Ended(0))], [], Done),
    "draining without a word": History([(10, OK), (1, DRAINING), (20, SILENT), (1, Ended(0))], [], Done),
    "draining, ended by a second signal": History([(10, OK), (1, DRAINING), (1, Ended(1))], [], Done),
    "draining, and hung in it": History([(10, OK), (1, DRAINING), (27, SILENT)], [1.0]),
    "drained, serving again, and a crash": History(
        [(10, OK), (5, DRAINING), (3, OK), (1, Ended(-9)), (3, LOADING), (10, OK)], [1.0]
    ),
    "told to end": History([(10, OK), (1, Ended(0))], [], Done),
    "hung": History([(10, OK), (3, SILENT), (3, LOADING), (10, OK)], [1.0]),
    "hung in its engine thread": History([(10, OK), (3, STUCK), (3, LOADING), (10, OK)], [1.0]),
    "hung after one good answer": History([(1, OK), (2, SILENT), (1, OK), (3, SILENT)], [1.0]),
    "crash": History([(10, OK), (1, Ended(-9)), (3, LOADING), (10, OK)], [1.0]),
    "crash loop": History([(1, OK), *[(1, Ended(1))] * 6], [1.0, 2.0, 4.0, 8.0, 16.0], GiveUp),
    "crash loop through loading": History(
        [(1, OK), *[(1, Ended(-9)), (5, LOADING)] * 5, (1, Ended(-9))], [1.0, 2.0, 4.0, 8.0, 16.0], GiveUp
    ),
    "crashes between short spells of service": History(
        [*[(5, OK), (1, Ended(-11))] * 6], [1.0, 2.0, 4.0, 8.0, 16.0], GiveUp
    ),
    "recovered": History([(1, OK), *[(1, Ended(1))] * 5, (26, OK), (1, Ended(1))], [1.0, 2.0, 4.0, 8.0, 16.0, 1.0]),
    "hung again and again": History([*[(1, OK), (3, SILENT)] * 6], [1.0, 2.0, 4.0, 8.0, 16.0], GiveUp),
    "fails at its first start": History([(3, LOADING), (1, Ended(1))], [], GiveUp),
    "killed at its first start": History([(3, LOADING), (1, Ended(-9))], [], GiveUp),
    "its settings stopped parsing": History([(1, OK), (1, Ended(-9)), (1, Ended(2))], [1.0], GiveUp),
    "its port was taken meanwhile": History([(1, OK), (1, Ended(-9)), (1, Ended(5)), (3, OK)], [1.0, 2.0]),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    history = HISTORIES[name]
    now = 1000.0
    watch = started(None, now)
    decision: Decision = Nothing()
    pauses = []
    for event in [event for times, event in history.events for _ in range(times)]:
        assert isinstance(decision, Nothing | Restart), f"watched on after {decision}"
        now += history.every_s
        watch, decision = judge(watch, now, event)
        if isinstance(decision, Restart):
            pauses.append(decision.pause_s)
            now += decision.pause_s
            watch = started(watch, now)
    assert pauses == history.pauses
    if not isinstance(decision, Restart):
        assert isinstance(decision, history.end)


def judge(watch: WatchState, now: float, event: Event) -> tuple[WatchState, Decision]:
    if isinstance(event, Ended):
        return exited(POLICY, watch, event.code, f"exit {event.code}")
    return probed(POLICY, watch, now, event, "timed out after 10 s")


def test_the_cause_names_the_probe_that_failed() -> None:
    watch = started(None, 0.0)
    watch, _ = probed(POLICY, watch, 5.0, OK)
    for now in (10.0, 15.0):
        watch, decision = probed(POLICY, watch, now, SILENT, "no answer within 10 s")
        assert decision == Nothing()
    _, decision = probed(POLICY, watch, 20.0, STUCK, "no turn of the loop for 130 s")
    assert decision == Restart(1.0, "hung: 3 probes in a row failed, the last one: no turn of the loop for 130 s")


def test_giving_up_says_how_often_and_why() -> None:
    watch = WatchState(heard_at=0.0, ever_ready=True, restarts=POLICY.restarts)
    _, decision = exited(POLICY, watch, -9, "killed by SIGKILL")
    assert isinstance(decision, GiveUp)
    assert decision.reason.startswith("5 restarts in a row did not help")
    assert decision.reason.endswith("killed by SIGKILL")


def test_pauses_stop_growing() -> None:
    policy = Policy(restarts=20, longest_pause_s=60.0)
    watch = WatchState(heard_at=0.0, ever_ready=True)
    pauses = []
    for _ in range(8):
        watch, decision = exited(policy, watch, 1, "")
        assert isinstance(decision, Restart)
        pauses.append(decision.pause_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
