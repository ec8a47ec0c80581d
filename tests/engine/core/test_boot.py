"""What an engine becomes of its settings and its box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.boot import Parts, boot, resolve_windows
from engine.core.scheduling.inbox import Inbox
from engine.execution.cuda.memory import AllocatorBlocks, KvMemory
from engine.memory.probe import FixedProbe
from engine.roles.planned import IDLE_LOOK_S
from tests.support.fake_gpu import FakeGpu
from tests.support.fake_model import ROW_BYTES, FakeClock, FakeRunner, Rig, fake_model, greedy, reading

Make = Callable[..., Rig]
BASE = EngineConfig(model=Path("fake"), model_name="fake")


@pytest.mark.parametrize(
    ("settings", "model_len", "windows", "room"),
    [
        ({}, 8192, (8192,), 2048),
        ({"parallel": 3}, 8192, (8192, 8192, 8192), 2048),
        ({"parallel": 2}, 262_144, (262_144, 65_536), 16_384),
        ({"parallel": 2, "max_len": 4096}, 8192, (4096, 4096), 1024),
        ({"parallel": 2, "max_len": 100_000}, 8192, (8192, 8192), 2048),
        ({"parallel": 2, "side_max_len": 1024}, 8192, (8192, 1024), 256),
        ({"parallel": 2, "side_max_len": 1024, "side_min_room": 7}, 8192, (8192, 1024), 7),
        ({"parallel": 2, "side_max_len": 99_999}, 8192, (8192, 8192), 2048),
        ({"max_len": 2}, 8192, (2,), 1),
    ],
)
def test_windows(settings: dict[str, object], model_len: int, windows: tuple[int, ...], room: int) -> None:
    resolved = resolve_windows(replace(BASE, **settings), model_len)  # type: ignore[arg-type]
    assert (resolved.slots, resolved.min_room) == (windows, room)


def test_slots_that_the_box_cannot_hold_are_left_out_and_said(rig: Make) -> None:
    """Whole windows of 256 rows take 2 MiB a slot, and the floor leaves room for two."""
    window = 256 * ROW_BYTES * 2
    r = rig(
        parallel=4,
        max_len=256,
        config=lambda c: replace(c, kv_pool=False, floor_bytes=(20 << 30) - 2 * window - 1000, hard_floor_bytes=0),
    )
    health = r.engine.health()
    assert (health.parallel.requested, health.parallel.slots, health.parallel.max_running) == (4, 2, 2)
    assert health.parallel.max_running_reason is not None
    assert health.parallel.max_running_reason.startswith("2 of 4 slots: slot 2 takes 2 MiB, its whole window counted")
    assert len(health.lanes) == 2


def test_without_the_pool_whole_windows_are_committed_and_texts_are_the_same(rig: Make) -> None:
    r = rig(parallel=2, max_len=256, config=lambda c: replace(c, kv_pool=False))
    before = r.engine.health().kv_pool
    assert not before.enabled
    assert before.committed_bytes == before.reserved_bytes
    sinks = [r.submit([i + 1, 2, 3], 20)[1] for i in range(4)]
    r.run_until_idle()
    assert [s.tokens() for s in sinks] == [greedy([i + 1, 2, 3], 20) for i in range(4)]
    assert r.engine.health().kv_pool.committed_bytes == before.committed_bytes


def test_planned_roles_are_shown_with_their_age(rig: Make, tmp_path: Path) -> None:
    document = tmp_path / "residency.toml"
    document.write_text(
        '[[role]]\nname = "narrator"\nkind = "narrator"\nclaim_gb = 1\n'
        '[[role]]\nname = "shadow-reader"\nkind = "shadow"\nclaim_gb = 500\n'
    )
    r = rig(config=lambda c: replace(c, residency_file=document))
    wide = rig(config=lambda c: replace(c, residency_file=document, role_margin_bytes=200 << 30))
    assert all("would refuse it" in role.reason for role in wide.engine.health().roles)
    assert isinstance(r.clock, FakeClock)
    r.clock.advance(70)
    r.engine.turn()
    small, large = r.engine.health().roles
    assert (small.name, small.state, small.since_s) == ("narrator", "planned", 70.0)
    assert small.reason == "roles do not run yet; the plan would load it"
    assert large.reason.startswith("roles do not run yet; the plan would refuse it")
    assert (small.decision, small.to_fit, small.claim_source) == ("load", None, "declared")
    assert large.decision == "refuse"
    assert large.to_fit is not None
    assert small.headroom_after is not None
    assert large.headroom_after == small.headroom_after - (500 << 30)


def test_roles_are_planned_again_as_memory_changes(rig: Make, tmp_path: Path) -> None:
    document = tmp_path / "residency.toml"
    document.write_text('[[role]]\nname = "narrator"\nkind = "narrator"\nclaim_gb = 1\n')
    r = rig(config=lambda c: replace(c, residency_file=document))
    r.clock.advance(60)
    r.engine.turn()
    r.probe.reading = reading(available=4 << 30)
    r.clock.advance(IDLE_LOOK_S)
    r.engine.turn()
    r.clock.advance(IDLE_LOOK_S + 1)
    r.engine.turn()
    r.clock.advance(1)
    r.engine.turn()
    (role,) = r.engine.health().roles
    assert (role.decision, role.since_s) == ("refuse", pytest.approx(1))
    assert "would refuse it: would leave" in role.reason


@pytest.mark.parametrize(("asked", "owed"), [(None, 0.35 / 0.65), (0.75, 3.0)])
def test_decoding_keeps_less_of_a_gpu_unless_a_share_is_set(asked: float | None, owed: float) -> None:
    """What a chunk of a second owes to decoding."""
    gpu = FakeGpu()
    memory = KvMemory("cuda:0", FixedProbe(reading()), reading(), gpu.plain(), AllocatorBlocks(gpu), "no pages")
    model = replace(fake_model(FakeRunner(), 64), kv_memory=memory)
    config = EngineConfig(Path("fake"), "fake", max_len=64, decode_share=asked)
    share = boot(config, Parts(lambda *_: model, lambda: FixedProbe(reading())), Inbox(1), lambda _: None).share
    share.chunk_ran(1.0, decoding=1)
    share.round_ran(owed - 0.01)
    assert not share.may_read(decoding=1)
    share.round_ran(0.02)
    assert share.may_read(decoding=1)
