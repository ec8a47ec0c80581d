"""The engine on its own thread: started, used from others, drained, closed, and failing to load."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.boot import Parts, Progress
from engine.core.loop import Engine, LoadingAborted
from engine.execution.rows import RowBatch
from engine.memory.probe import FixedProbe
from engine.protocol import Loading, Status
from engine.request import Done, Failed, Request, RequestError, SamplingParams
from tests.support.fake_model import FakeModel, FakeRunner, RecordingSink, fake_model, greedy, reading

Make = Callable[..., Engine]
PATIENCE_S = 60
CONFIG = EngineConfig(model=Path("fake"), model_name="fake", parallel=4, max_len=256, prefill_chunk=16, queue_limit=200)


def request(name: str, prompt: list[int], max_tokens: int, **fields: object) -> Request:
    base = Request(
        id=name,
        client="test",
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        ignore_eos=True,
        sampling=SamplingParams(temperature=0.0),
    )
    return replace(base, **fields)  # type: ignore[arg-type]


@pytest.fixture
def engines() -> Iterator[Make]:
    made: list[Engine] = []

    def make(
        runner: FakeRunner | None = None, load: Callable[..., FakeModel] | None = None, **config: object
    ) -> Engine:
        model = fake_model(runner or FakeRunner(), 256)
        parts = Parts(load=load or (lambda _config, _progress: model), probe=lambda: FixedProbe(reading()))
        made.append(Engine(replace(CONFIG, **config), parts))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.close(timeout_s=PATIENCE_S)
        assert engine._thread is None or not engine._thread.is_alive()


def serve(engine: Engine) -> Engine:
    engine.start()
    assert engine.wait_ready(PATIENCE_S)
    return engine


def test_a_request_from_another_thread(engines: Make) -> None:
    engine = serve(engines())
    sink = RecordingSink()
    engine.submit(request("a", [1, 2, 3], 20), sink)
    assert sink.done.wait(PATIENCE_S)
    assert sink.tokens() == greedy([1, 2, 3], 20)


def test_several_engines_in_one_process(engines: Make) -> None:
    running = [serve(engines(parallel=n)) for n in (1, 2, 3)]
    sinks = [RecordingSink() for _ in running]
    for engine, sink in zip(running, sinks, strict=True):
        engine.submit(request("same", [1, 2, 3], 50), sink)
    for engine, sink in zip(running, sinks, strict=True):
        assert sink.done.wait(PATIENCE_S)
        assert sink.tokens() == greedy([1, 2, 3], 50)
        assert engine.health().parallel.slots == running.index(engine) + 1


def test_an_idle_engine_sleeps(engines: Make) -> None:
    engine = serve(engines())
    slept: list[float] = []
    sleep = engine._inbox.sleep
    third = threading.Event()

    def recorded(timeout_s: float) -> None:
        slept.append(timeout_s)
        if len(slept) == 3:
            third.set()
        sleep(timeout_s)

    engine._inbox.sleep = recorded  # type: ignore[method-assign]
    assert third.wait(PATIENCE_S)
    assert slept[:3] == [0.25] * 3  # one turn, then a quarter of a second of sleep


def test_before_the_model_is_there(engines: Make) -> None:
    go_on = threading.Event()
    model = fake_model(FakeRunner(), 256)

    def load(config: EngineConfig, progress: Progress) -> FakeModel:
        progress(Loading(stage="packing weights", done_bytes=1, total_bytes=2, eta_s=None))
        assert go_on.wait(PATIENCE_S)
        return model

    engine = engines(load=load)
    engine.start()
    assert not engine.wait_ready(0.0)
    with pytest.raises(RequestError) as caught:
        engine.submit(request("a", [1], 1), RecordingSink())
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "loading", 5)
    assert engine.health().status is Status.LOADING
    assert engine.model is None
    go_on.set()
    assert engine.wait_ready(PATIENCE_S)
    assert engine.model is not None
    assert engine.health().status is Status.OK


def test_a_model_that_does_not_load(engines: Make) -> None:
    def load(config: EngineConfig, progress: Progress) -> FakeModel:
        raise OSError("no such file")

    engine = engines(load=load)
    engine.start()
    with pytest.raises(OSError, match="no such file"):
        engine.wait_ready(PATIENCE_S)


def test_closing_while_the_model_loads(engines: Make) -> None:
    loading, closing = threading.Event(), threading.Event()

    def load(config: EngineConfig, progress: Progress) -> FakeModel:
        loading.set()
        assert closing.wait(PATIENCE_S)
        progress(Loading(stage="packing weights", done_bytes=1, total_bytes=2, eta_s=None))
        raise AssertionError("loading went on")

    engine = engines(load=load)
    engine.start()
    assert loading.wait(PATIENCE_S)
    engine.drain()
    engine._closing = True
    closing.set()
    with pytest.raises(LoadingAborted):
        engine.wait_ready(PATIENCE_S)


def test_a_drain_while_loading_can_be_taken_back(engines: Make) -> None:
    go_on, loading = threading.Event(), threading.Event()

    def load(config: EngineConfig, progress: Progress) -> FakeModel:
        loading.set()
        assert go_on.wait(PATIENCE_S)
        return fake_model(FakeRunner(), 256)

    engine = engines(load=load)
    engine.start()
    assert loading.wait(PATIENCE_S)
    engine.drain()
    assert engine.resume()
    with pytest.raises(RequestError, match="still loading"):
        engine.submit(request("early", [1], 4), RecordingSink())
    go_on.set()
    assert engine.wait_ready(PATIENCE_S)
    sink = RecordingSink()
    engine.submit(request("late", [1], 4), sink)
    assert sink.done.wait(PATIENCE_S)
    engine.close(PATIENCE_S)
    assert not engine.resume()


@pytest.mark.parametrize("settings", [{"parallel": 0}, {"decode_share": 1.0}, {"max_len": 1}])
def test_settings_that_make_no_sense(engines: Make, settings: dict[str, object]) -> None:
    engine = engines(**settings)
    engine.start()
    with pytest.raises(ValueError, match=r"TANDEM_PARALLEL|decode_share|window"):
        engine.wait_ready(PATIENCE_S)


def test_close_lets_what_runs_finish(engines: Make) -> None:
    three_run = threading.Event()

    def watch(batch: RowBatch) -> None:
        if len(set(batch.slot.tolist())) == 3:
            three_run.set()

    engine = serve(engines(runner=FakeRunner(before=watch)))
    sinks = [RecordingSink() for _ in range(3)]
    for i, sink in enumerate(sinks):
        engine.submit(request(str(i), [i + 1, 2, 3], 240), sink)
    assert three_run.wait(PATIENCE_S)
    engine.close(timeout_s=PATIENCE_S)
    assert all(s.of(Done) for s in sinks)
    with pytest.raises(RequestError, match="drains"):
        engine.submit(request("late", [1], 1), RecordingSink())


def test_close_ends_what_takes_too_long(engines: Make) -> None:
    started = threading.Event()
    hold = threading.Event()

    def slow(batch: object) -> None:
        started.set()
        hold.wait(0.01)

    engine = serve(engines(runner=FakeRunner(before=slow)))
    sink = RecordingSink()
    engine.submit(request("a", [1, 2, 3], 250), sink)
    assert started.wait(PATIENCE_S)
    engine.close(timeout_s=0.05)
    assert sink.done.is_set()
    assert sink.of(Failed)[0].error.code == "draining"


def test_an_engine_that_was_never_started_closes(engines: Make) -> None:
    engines().close()


def test_a_second_start_is_refused(engines: Make) -> None:
    engine = serve(engines())
    with pytest.raises(RuntimeError, match="started before"):
        engine.start()


def test_many_clients_that_come_and_go(engines: Make) -> None:
    """Eight threads submit and cancel at random; who stayed has its own text, and the books are at their baseline."""
    engine = serve(engines(parallel=3))
    wrong: list[str] = []

    def client(number: int) -> None:
        rng = random.Random(number)
        for turn in range(12):
            prompt = [rng.randrange(1, 512) for _ in range(rng.randrange(1, 60))]
            count = rng.randrange(1, 30)
            name, sink = f"{number}-{turn}", RecordingSink()
            engine.submit(request(name, prompt, count, first_user_end=len(prompt) // 2), sink)
            if rng.random() < 0.4:
                sink.done.wait(rng.random() / 100)
                engine.cancel(name)
            elif not sink.done.wait(PATIENCE_S) or sink.tokens() != greedy(prompt, count):
                wrong.append(name)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []
    state = engine._state
    assert state is not None
    pool = state.pool
    pool_close = pool.close
    pool.close = lambda: None  # type: ignore[method-assign]
    engine.close(timeout_s=PATIENCE_S)
    pool.check_integrity()
    totals = engine.health().parallel.totals
    assert totals.served + totals.abandoned == 96
    assert (totals.errors, totals.refused, totals.timeouts) == (0, 0, 0)
    assert state.requests == {}
    assert state.memory.reservations.outstanding() == 0
    assert all(slot.running is None for slot in state.slots)
    pool_close()


def test_a_door_shut_while_the_model_loads_stays_shut(engines: Make) -> None:
    """Drain comes at the last moment of loading: the engine becomes ready and accepts nothing."""
    model = fake_model(FakeRunner(), 256)
    made: list[Engine] = []

    def load(config: EngineConfig, progress: Progress) -> FakeModel:
        made[0].drain()
        return model

    engine = engines(load=load)
    made.append(engine)
    serve(engine)
    with pytest.raises(RequestError) as caught:
        engine.submit(request("a", [1], 1), RecordingSink())
    assert caught.value.code == "draining"
    assert engine.health().status is Status.DRAINING


def test_who_reads_that_it_is_ready_finds_the_door_open(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines()
    seen: list[Status] = []
    door = engine._inbox.open

    def opened(slots: int) -> None:
        seen.append(engine.health().status)
        door(slots)

    monkeypatch.setattr(engine._inbox, "open", opened)
    serve(engine)
    assert seen == [Status.LOADING]
    assert engine.health().status is Status.OK
