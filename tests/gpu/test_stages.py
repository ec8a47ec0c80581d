"""The stages' own logic, on the CPU: what a GPU's one run must not stumble over."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loop import Engine
from engine.execution.cuda.page_stock import PageStock
from engine.execution.cuda.vmm import device_ranges
from engine.execution.rows import RowBatch
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.kv.pool import KvPool
from engine.memory.probe import FixedProbe
from tests.gpu.beside import as_in_a_service, drive
from tests.gpu.pool import CountedDriver, Grown, beyond, grow
from tests.gpu.spans import Span, Spans
from tests.support.fake_driver import PAGE, FakeDriver
from tests.support.fake_model import VOCAB, FakeRunner, fake_model, reading


def test_a_gap_is_taken_apart() -> None:
    spans = Spans()
    spans.seen = [
        Span("chunk", 0.9, 1.004),
        Span("round", 1.005, 1.02),
        Span("round", 1.03, 1.04),
        Span("capture x", 1.01, 1.018),
        Span("map on the helper's thread", 0.0, 1.001),
        Span("commit", 1.0301, 1.03011),
    ]
    said = spans.parts(1.0, 1.031)
    assert said == "chunk 4.0, round 16.0 in 2, other 11.0 [capture x 8.0, map on the helper's thread 1.0]"
    assert spans.parts(5.0, 5.001) == "nothing, other 1.0"


def slow_until_read(chunks: int) -> Callable[[RowBatch], None]:
    """Lets streams go on at a crawl until so many chunks were read: they must not end before a prompt has come."""
    read = rounds = 0

    def before(batch: RowBatch) -> None:
        nonlocal read, rounds
        read += batch.n > 8
        rounds += batch.n <= 8
        if rounds > 100 and read < chunks:
            time.sleep(0.02)

    return before


def test_a_prompt_beside_streams_is_measured_and_leaves_the_interpreter_as_it_was() -> None:
    before = (sys.getswitchinterval(), gc.isenabled(), len(gc.callbacks))
    model = fake_model(FakeRunner(before=slow_until_read(chunks=5 * 128 // 32)), 512)
    config = EngineConfig(model=Path("fake"), model_name="fake", parallel=3, max_len=512, prefill_chunk=32)
    engine = Engine(config, Parts(load=lambda _config, _progress: model, probe=lambda: FixedProbe(reading())))
    with as_in_a_service(engine):
        figures, *worst = drive(engine, VOCAB, prompt=128, decoders=2, context=8, answer=480, settle=0.02)
    assert "prompt of 128 beside 2 streams at 8+: first token" in figures
    assert any("chunk" in line and "round" in line for line in worst)
    assert (sys.getswitchinterval(), gc.isenabled(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


class IdleDriver(FakeDriver):
    """Work ends at once."""

    def passed(self, event: int) -> bool:
        return True


def test_growing_windows_are_held_to_their_bytes_and_threads() -> None:
    layout = KvLayout(tuple(KvTensor("engine", 0, kind, PAGE // 64) for kind in "kv"))

    def grown(ranges_ahead: bool) -> Grown:
        driver = CountedDriver(IdleDriver())
        stock = PageStock(driver)
        ranges = replace(device_ranges(stock), ahead=ranges_ahead)
        pool = KvPool(layout, [640] * 4, margin_rows=64, ranges=ranges)
        done = grow(pool, stock, driver, lambda _at: None, lambda _at: None, first=70, last=130, repeats=2)
        pool.commit(0, 400)
        assert beyond(pool, layout, 0, 200)
        pool.close()
        return done

    ahead = grown(True)
    assert ahead.right
    assert ahead.ratio > 0
    assert [len(rounds) for rounds in (*ahead.plain, *ahead.pool)] == [60] * 4
    assert "in rounds 0 map calls and 0 unmap calls, by the helper" in str(ahead)
    assert min(ahead.by_helper["map"], ahead.by_helper["unmap"]) > 0
    none = grown(False)
    assert not none.right
    assert none.in_rounds["map"] > 0
    unmapped = replace(ahead, in_rounds=Counter(unmap=1))
    assert not unmapped.right
