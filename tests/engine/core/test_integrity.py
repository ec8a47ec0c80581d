"""The books are checked once each time the engine falls idle, and a disagreement is told without hurting anyone."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from engine.core.state import EngineState
from engine.memory.kv.pool import KvPool
from tests.support.fake_model import Rig, greedy

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]


def test_once_each_time_the_engine_falls_idle(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(KvPool, "check_integrity", lambda self, **_: checked.append(1))
    r = rig(parallel=2)
    for wave in (1, 2):
        r.submit(PROMPT, 5)
        r.submit(PROMPT[::-1], 9)
        r.run_until_idle()
        r.turns(20)
        assert len(checked) == wave
    r.engine.cancel(r.submit(PROMPT, 5)[0])
    r.turns(3)
    assert len(checked) == 3
    assert r.engine.health().defect is None


Undo = Callable[[], None]


def pages(state: EngineState) -> Undo:
    state.pool._committed += 65536
    return lambda: setattr(state.pool, "_committed", state.pool._committed - 65536)


def reservation(state: EngineState) -> Undo:
    ledger = state.memory.reservations
    ledger.outstanding = lambda *_: 4096  # type: ignore[method-assign]
    return lambda: delattr(ledger, "outstanding")


def rows(state: EngineState) -> Undo:
    state.slots[1].state.rows += 1
    return lambda: setattr(state.slots[1].state, "rows", 0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (pages, "KV pool: committed bytes: "),
        (reservation, "reservations: 4,096 bytes are promised while nothing runs"),
        (rows, "slot 1: 1 rows are valid for a conversation of 0 tokens"),
    ],
)
def test_a_disagreement_is_told_and_serving_goes_on(
    rig: Make, caplog: pytest.LogCaptureFixture, spoil: Callable[[EngineState], Undo], words: str
) -> None:
    r = rig(parallel=2)
    _, sink = r.submit(PROMPT, 20)
    r.turns(5)
    mend = spoil(r.engine._serving())
    assert r.engine.health().defect is None
    with caplog.at_level(logging.CRITICAL, "tandem.engine"):
        r.run_until_idle()
    assert sink.tokens() == greedy(PROMPT, 20)
    assert (r.engine.health().defect or "").startswith(words)
    assert len(caplog.records) == 1
    assert words in caplog.text
    mend()
    _, after = r.submit(PROMPT, 5)
    r.run_until_idle()
    assert after.tokens() == greedy(PROMPT, 5)
    assert r.engine.health().defect is None
