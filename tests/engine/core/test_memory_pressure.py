"""Requests against a box that is short of memory: one waits with its reason, one is refused, none disturbs another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.memory.probe import FixedProbe, MemoryReading
from engine.protocol import WaitState
from engine.request import Done, Failed, RequestError, Waiting
from tests.support.fake_model import LAYOUT, RecordingSink, Rig, greedy

Make = Callable[..., Rig]
MIB = 1 << 20
PAGE = 65536
LONG = [i % 500 + 1 for i in range(150)]
SHORT = [3, 1, 4, 1, 5]


class SharedBox:
    """Memory in which the rig's own pages count: `spare` bytes are free beside them."""

    def __init__(self, rig: Rig, spare: int) -> None:
        self._rig = rig
        self.spare = spare

    def read(self) -> MemoryReading:
        available = self.spare - self._rig.pool.stats().committed_bytes
        return MemoryReading("host", 1 << 30, available, (1 << 30) - available, 0)


def short_of_memory(rig: Make, spare: int, parallel: int = 2, **settings: object) -> Rig:
    """A rig on a box with `spare` bytes, no floor, a hard floor of 0."""

    def configured(config: EngineConfig) -> EngineConfig:
        return replace(config, floor_bytes=0, hard_floor_bytes=0, **settings)  # type: ignore[arg-type]

    r = rig(parallel=parallel, config=configured)
    box = SharedBox(r, spare)
    state = r.engine._serving()
    state.memory.probe = box
    assert state.pool.guard is not None
    state.pool.guard._probe = box  # type: ignore[attr-defined]
    return r


def kv_bytes(rows: int) -> int:
    """Pages for `rows` rows in both tensors."""
    return -(-rows * 4096 // PAGE) * PAGE * len(LAYOUT.tensors)


def failure(sink: RecordingSink) -> RequestError:
    return sink.of(Failed)[0].error


def test_one_and_a_half_long_requests_fit(rig: Make) -> None:
    whole = kv_bytes(150 + 60 + 8)
    r = short_of_memory(rig, spare=whole * 3 // 2)
    _, first = r.submit(LONG, 60)
    _, second = r.submit(LONG[::-1], 60, stream=True)
    r.turns(5)
    waits = second.of(Waiting)
    assert [w.state for w in waits] == [WaitState.MEMORY]
    assert waits[0].reason.startswith("memory is almost full, this request may take")
    r.clock.advance(0.2)
    r.engine.turn()
    health = r.engine.health()
    assert (health.parallel.max_running, health.parallel.max_running_reason) == (1, waits[0].reason)
    assert health.queue[0].state == "waiting_memory"
    assert health.parallel.totals.waiting_memory == 1
    r.run_until_idle()
    assert first.tokens() == greedy(LONG, 60)
    assert second.tokens() == greedy(LONG[::-1], 60)
    assert r.engine.health().parallel.totals.waiting_memory == 1


def test_later_requests_do_not_pass_one_that_waits_for_memory(rig: Make) -> None:
    whole = kv_bytes(150 + 60 + 8)
    r = short_of_memory(rig, spare=whole * 3 // 2, parallel=3)
    r.submit(LONG, 60)
    _, big = r.submit(LONG[::-1], 60)
    _, small = r.submit(SHORT, 1)
    r.turns(3)
    assert small.events == [Waiting(WaitState.MEMORY, "waits behind 1 request that waits for memory")]
    r.run_until_idle()
    assert big.of(Done)
    assert small.of(Done)


def test_a_request_alone_never_waits_for_memory(rig: Make) -> None:
    r = short_of_memory(rig, spare=kv_bytes(218) + 4096)
    _, sink = r.submit(LONG, 60)
    r.run_until_idle()
    assert sink.tokens() == greedy(LONG, 60)


def test_what_cannot_fit_even_alone_is_refused(rig: Make) -> None:
    r = short_of_memory(rig, spare=kv_bytes(100))
    _, sink = r.submit(LONG, 60)
    r.run_until_idle()
    error = failure(sink)
    assert (error.status, error.code) == (400, "too_large")
    assert "too large for this box even alone" in error.message
    assert r.engine.health().parallel.totals.refused == 1


def test_waiting_too_long_for_memory(rig: Make) -> None:
    whole = kv_bytes(150 + 60 + 8)
    for stream in (False, True):
        r = short_of_memory(rig, spare=whole * 3 // 2, queue_timeout_s=10.0, request_timeout_s=100.0)
        _, first = r.submit(LONG, 60)
        _, second = r.submit(LONG[::-1], 60, stream=stream)
        r.turns(2)
        r.clock.advance(11)
        r.turns(2)
        if stream:
            assert not second.of(Failed)
        else:
            error = failure(second)
            assert (error.status, error.code, error.retry_after) == (503, "memory_wait_timeout", 10)
        r.run_until_idle()
        assert first.tokens() == greedy(LONG, 60)


def test_an_idle_conversation_is_given_back_before_a_request_waits(rig: Make) -> None:
    whole = kv_bytes(150 + 60 + 8)
    r = short_of_memory(rig, spare=whole * 2, parallel=3)
    for prompt in (LONG, LONG[::-1]):
        r.submit(prompt, 60)
        r.run_until_idle()
        r.clock.advance(1)
    assert r.engine.health().cache["resident"].entries == 2
    sinks = [r.submit([i, *LONG], 60)[1] for i in (7, 8)]
    r.run_until_idle()
    assert not any(s.of(Waiting) for s in sinks)
    assert [s.tokens() for s in sinks] == [greedy([i, *LONG], 60) for i in (7, 8)]


def test_a_commit_that_is_refused_ends_that_request_alone(rig: Make) -> None:
    r = short_of_memory(rig, spare=64 * MIB)
    _, first = r.submit(SHORT, 100)
    _, second = r.submit(LONG, 60)
    r.turns(2)
    # Another process takes the memory that was promised.
    box = r.engine._serving().memory.probe
    assert isinstance(box, SharedBox)
    box.spare = r.pool.stats().committed_bytes
    r.turns(6)
    assert failure(second).code == "out_of_memory"
    assert failure(second).status == 503
    box.spare = 64 * MIB
    r.run_until_idle()
    assert first.tokens() == greedy(SHORT, 100)
    assert r.pool.stats().refused == 1


def test_a_turn_that_only_ended_a_request_is_followed_at_once(rig: Make) -> None:
    """A refused commit frees a slot although nothing was computed: who waits for it does not sit out the pause."""
    r = short_of_memory(rig, spare=64 * MIB, parallel=1)
    _, first = r.submit(SHORT, 100)
    _, second = r.submit(SHORT[::-1], 3)
    box = r.engine._serving().memory.probe
    assert isinstance(box, SharedBox)
    worked = r.engine.turn()
    for _ in range(200):
        if first.of(Failed):
            break
        box.spare = r.pool.stats().committed_bytes
        worked = r.engine.turn()
    assert first.of(Failed)
    assert not worked
    assert r.engine._pause() == 0.0
    box.spare = 64 * MIB
    r.run_until_idle()
    assert second.tokens() == greedy(SHORT[::-1], 3)
    assert r.engine._pause() == 0.25


def test_reservations_are_credited_as_pages_are_committed(rig: Make) -> None:
    r = short_of_memory(rig, spare=64 * MIB)
    r.submit(LONG, 60)
    r.engine.turn()
    ledger = r.engine._serving().memory.reservations
    promised = kv_bytes(150 + 60 + 8)
    for _ in range(200):
        assert ledger.outstanding() + r.pool.committed_bytes(0) == promised
        r.engine.turn()
        if not r.engine._serving().requests:
            return
    raise AssertionError("the request never ends")


def test_a_box_that_cannot_be_measured_any_more_ends_no_answer(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(parallel=2)
    _, running = r.submit(LONG, 60)
    r.turns(5)

    def unreadable(_: FixedProbe) -> MemoryReading:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(FixedProbe, "read", unreadable)
    _, later = r.submit(SHORT, 40)
    r.clock.advance(3)
    r.turns(5)
    memory = r.engine.health().memory
    assert memory.available == r.probe.reading.available
    assert memory.reading_age_s >= 3
    r.run_until_idle()
    assert (running.tokens(), later.tokens()) == (greedy(LONG, 60), greedy(SHORT, 40))
