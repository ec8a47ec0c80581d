"""What the engine writes into its ledger: one row a request, whichever way it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.loop import Engine
from engine.core.scheduling.inbox import cancelled
from engine.execution.rows import RowBatch
from engine.process.ledger.reader import Search
from engine.process.ledger.writer import Ledger
from engine.protocol import Finish, LedgerRow
from engine.request import Ending, Failed, RequestError
from tests.support.fake_model import Rig
from tests.support.scripted_engine import wait_until

Make = Callable[..., Rig]
PROMPT = [3, 1, 4, 1, 5]
STEP_S = 0.01


@pytest.fixture
def kept(rig: Make, tmp_path: Path) -> Make:
    """Makes rigs that keep a ledger, on which every pass takes a hundredth of a second."""

    def make(**settings: object) -> Rig:
        made = rig(config=lambda c: replace(c, state_dir=tmp_path, queue_limit=1, **settings), parallel=1)
        made.runner.before = lambda batch: made.clock.advance(STEP_S)
        return made

    return make


def rows(r: Rig) -> list[LedgerRow]:
    """Every row, the oldest first, once as many are written as the engine left."""
    reader = r.engine.ledger
    assert reader is not None
    r.engine._publisher.publish(draining=False, at_once=True)
    totals = r.engine.health().parallel.totals
    ended = sum((totals.served, totals.refused, totals.errors, totals.timeouts, totals.abandoned, totals.cancelled))
    assert wait_until(lambda: r.engine._serving().ledger.state().written == ended)  # type: ignore[union-attr]
    return reader.page(Search()).rows[::-1]


def test_while_the_model_loads_the_ledger_is_said_to_be_kept(tmp_path: Path) -> None:
    config = EngineConfig(model=Path("fake"), model_name="fake", state_dir=tmp_path)
    for days, kept in ((30.0, True), (0.0, False)):
        assert Engine(replace(config, ledger_days=days)).health().ledger.enabled is kept


def test_a_whole_answer(kept: Make) -> None:
    r = kept()
    before = time.time()
    r.submit(PROMPT, 200, client="aider", model="wanted", first_user_end=2)
    r.turns(1)
    r.submit(PROMPT, 6, client="c" * 500, first_user_end=2)
    r.run_until_idle()
    first, second = rows(r)
    assert (first.id, first.client, first.model, first.slot, first.route) == ("req-1", "aider", "wanted", 0, "empty")
    assert (first.prompt_tokens, first.completion_tokens, first.max_tokens) == (5, 200, 200)
    assert (first.finish, first.reason, first.cached_tokens, first.cache_source) == (Finish.LENGTH, None, 0, "none")
    assert (first.queue_s, first.prefill_s, first.ttft_s) == pytest.approx((0, STEP_S, STEP_S))
    assert (first.decode_s, first.total_s) == pytest.approx((199 * STEP_S, 200 * STEP_S))
    assert (first.tok_s, first.worst_gap_s) == pytest.approx((100, STEP_S))
    assert before - 3 < first.arrived_at < first.finished_at < time.time() + 1
    assert first.finished_at - first.arrived_at == pytest.approx(first.total_s)
    assert (second.client, second.route, second.cache_source) == ("c" * 128, "home", "resident")
    assert second.queue_s == pytest.approx(199 * STEP_S, abs=2 * STEP_S)
    assert second.ttft_s == pytest.approx(second.queue_s + STEP_S)
    assert second.cached_tokens == 4


def test_what_outlasts_the_drain_is_no_client_that_left(kept: Make) -> None:
    r = kept()
    late, _ = r.submit(PROMPT, 50)
    r.turns(4)
    r.engine.end(late, RequestError("the server ended", status=503, code="draining"), Ending.TIMEOUT)
    r.turns(1)
    assert [(row.finish, row.reason) for row in rows(r)] == [(Finish.TIMEOUT, "the server ended")]


def test_every_other_way_to_end(kept: Make) -> None:
    r = kept(request_timeout_s=5.0)
    gone, _ = r.submit(PROMPT, 50)
    r.turns(4)
    r.engine.cancel(gone)
    r.turns(1)
    stopped, sink = r.submit(PROMPT, 50)
    r.turns(4)
    r.engine.end(stopped, cancelled(), Ending.CANCELLED)
    r.turns(1)
    assert [event.error.code for event in sink.of(Failed)] == ["cancelled"]
    r.submit(PROMPT, 50)
    r.turns(4)
    r.submit(PROMPT, 50)
    with pytest.raises(RequestError, match="the queue is full"):
        r.submit(PROMPT, 50)
    with pytest.raises(RequestError, match="context window"):
        r.submit([1] * 999, 10**30)
    r.turns(1)
    r.clock.advance(6)
    r.turns(1)
    r.runner.before = fail
    r.submit(PROMPT, 50)
    r.run_until_idle()
    found = {row.id: row for row in rows(r)}
    assert [(row.id, row.finish) for row in found.values()] == [
        ("req-1", Finish.ABANDONED),
        ("req-2", Finish.CANCELLED),
        ("req-5", Finish.REFUSED),
        ("req-6", Finish.REFUSED),
        ("req-3", Finish.TIMEOUT),
        ("req-4", Finish.TIMEOUT),
        ("req-7", Finish.ERROR),
    ]
    assert found["req-1"].reason == "its client left; 5 tokens had been generated"
    assert found["req-2"].reason == "cancelled by the operator"
    assert "TANDEM_QUEUE_LIMIT" in (found["req-5"].reason or "")
    assert found["req-6"].max_tokens == (1 << 63) - 1
    assert "TANDEM_REQUEST_TIMEOUT" in (found["req-3"].reason or "")
    waited = found["req-4"]
    assert (waited.slot, waited.queue_s, waited.ttft_s, waited.tok_s, waited.route) == (None,) * 5
    assert waited.total_s == pytest.approx(6, abs=0.1)
    assert found["req-7"].reason == "this request failed in the engine: RuntimeError while computing"
    totals = r.engine.health().parallel.totals
    assert (totals.abandoned, totals.cancelled, totals.refused, totals.timeouts, totals.errors) == (1, 1, 2, 2, 1)


def test_how_far_it_was_when_its_client_left(kept: Make) -> None:
    r = kept()
    reading, _ = r.submit(list(range(1, 200)), 10)
    waiting, _ = r.submit(PROMPT, 10)
    r.turns(3)
    read = r.engine._serving().slots[0].state.rows
    assert 0 < read < 199
    r.engine.cancel(waiting)
    r.engine.cancel(reading)
    r.run_until_idle()
    found = {row.id: row.reason for row in rows(r)}
    assert found[waiting] == "its client left while it waited"
    assert found[reading] == f"its client left with {100 * read // 199} % of its prompt read"


def fail(batch: RowBatch) -> None:
    raise RuntimeError("a kernel failed")


def test_the_choices_of_one_request_are_one_row(rig: Make, tmp_path: Path) -> None:
    r = rig(config=lambda c: replace(c, state_dir=tmp_path), parallel=2)
    r.runner.before = lambda batch: r.clock.advance(STEP_S)
    r.submit(PROMPT, 11, n=2)
    r.run_until_idle()
    (row,) = rows(r)
    assert (row.completion_tokens, row.slot, row.finish) == (22, 0, Finish.LENGTH)
    assert row.decode_s is not None
    assert row.tok_s == pytest.approx(20 / row.decode_s, rel=0.01)


def test_an_unusable_ledger_stops_nothing(rig: Make, tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").mkdir()
    r = rig(config=lambda c: replace(c, state_dir=tmp_path))
    _, sink = r.submit(PROMPT, 5)
    r.run_until_idle()
    assert len(sink.tokens()) == 5

    def said() -> bool:
        r.engine._publisher.publish(draining=False, at_once=True)
        return r.engine.health().ledger.defect is not None

    assert wait_until(said)
    ledger = r.engine.health().ledger
    assert "ledger.sqlite cannot be used" in (ledger.defect or "")
    assert (ledger.enabled, ledger.written) == (True, 0)


@pytest.mark.parametrize("settings", [{"ledger_days": 0.0}, {"state_dir": None}])
def test_no_ledger_where_none_is_wanted(rig: Make, tmp_path: Path, settings: dict[str, object]) -> None:
    r = rig(config=lambda c: replace(c, **{"state_dir": tmp_path, **settings}))
    r.submit(PROMPT, 3)
    r.run_until_idle()
    assert r.engine.ledger is None
    assert not r.engine.health().ledger.enabled
    assert list(tmp_path.iterdir()) == []


def test_a_waiting_request_is_ended_by_the_operator(rig: Make) -> None:
    r = rig(parallel=1)
    r.submit(PROMPT, 30)
    r.turns(2)
    waiting, sink = r.submit(PROMPT, 30)
    r.turns(1)
    r.engine.end(waiting, cancelled(), Ending.CANCELLED)
    r.engine.end("req-unknown", cancelled(), Ending.CANCELLED)
    r.run_until_idle()
    assert [(event.error.code, event.error.status) for event in sink.of(Failed)] == [("cancelled", 410)]
    assert r.engine.health().parallel.totals.cancelled == 1


def test_what_the_queue_holds_is_written_as_the_engine_closes(tmp_path: Path) -> None:
    r = Rig(config=lambda c: replace(c, state_dir=tmp_path))
    r.submit(PROMPT, 3)
    r.run_until_idle()
    ledger = r.engine._serving().ledger
    assert isinstance(ledger, Ledger)
    r.engine.close()
    assert ledger.state().written == 1
