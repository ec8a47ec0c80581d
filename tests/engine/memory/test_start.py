"""What an engine takes at start: whole windows only above the floors, pooled ones not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.boot import Parts, boot
from engine.core.scheduling.inbox import Inbox
from engine.core.state import EngineState
from engine.memory.kv.pool import CommitRefused
from engine.memory.sizes import MIB
from tests.support.fake_model import LAYOUT, FakeRunner, fake_model
from tests.support.memory import ScriptedProbe

WINDOW = 256
WHOLE = WINDOW * LAYOUT.row_bytes


def start(available: int, *, parallel: int = 2, kv_pool: bool) -> EngineState:
    config = EngineConfig(
        model=Path("fake"),
        model_name="fake",
        parallel=parallel,
        max_len=WINDOW,
        kv_pool=kv_pool,
        floor_bytes=4 * MIB,
        hard_floor_bytes=2 * MIB,
    )
    model = fake_model(FakeRunner(), WINDOW)
    parts = Parts(load=lambda _config, _progress: model, probe=lambda: ScriptedProbe(available))
    return boot(config, parts, Inbox(8), lambda _loading: None)


def test_pooled_slots_start_on_a_box_that_could_not_back_their_windows():
    state = start(4 * MIB, kv_pool=True)
    assert len(state.slots) == 2
    assert state.pool.stats().committed_bytes == 0
    state.pool.close()


def test_without_the_pool_fewer_slots_start_and_say_why():
    state = start(4 * MIB + WHOLE * 3 // 2, kv_pool=False)
    assert len(state.slots) == 1
    assert state.slots_reason is not None
    assert state.slots_reason.startswith("1 of 2 slots: slot 1 takes 2 MiB, its whole window counted")
    assert state.pool.stats().committed_bytes == WHOLE
    state.pool.close()


def test_without_the_pool_a_window_under_the_hard_floor_is_refused_not_taken():
    with pytest.raises(CommitRefused, match=r"slot 0 needs 2 MiB .* 2 MiB stays free as the hard floor"):
        start(2 * MIB + WHOLE - 1, kv_pool=False)
