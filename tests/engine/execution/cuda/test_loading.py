"""A model on a GPU of our own: what is shown, where pages go, each refusal's words, and what "auto" makes of them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loading import load
from engine.core.loop import Engine
from engine.execution.cuda import system as cuda_system
from engine.execution.cuda.memory import AllocatorBlocks
from engine.execution.devices import UnusableDevice
from engine.memory.budget import split_total
from engine.memory.probe import FixedProbe
from engine.protocol import Health, Loading
from engine.request import Request, SamplingParams
from tests.support.fake_driver import PAGE
from tests.support.fake_gpu import FakeGpu, FakeSystem
from tests.support.fake_model import RecordingSink, reading
from tests.support.gguf_files import write_tiny_llama

PROMPT = (40, 41, 42, 43)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "t.gguf")


def hurried() -> Callable[[], float]:
    """A clock that is late for every reading of the memory."""
    ticks = itertools.count()
    return lambda: next(ticks) * 0.3


@contextmanager
def engine(path: Path, system: FakeSystem, *, device: str = "cuda", parallel: int = 2) -> Iterator[Engine]:
    config = EngineConfig(
        model=path, model_name="tiny", device=device, parallel=parallel, threads=1, kv_margin_rows=64, floor_bytes=0
    )
    parts = Parts(
        load=lambda c, progress: load(c, progress, system), probe=lambda: FixedProbe(reading()), clock=hurried()
    )
    one = Engine(config, parts)
    one.load()
    try:
        yield one
    finally:
        one.close()


def text(one: Engine) -> str:
    sinks = [RecordingSink() for _ in range(2)]
    for i, sink in enumerate(sinks):
        request = Request(
            id=f"r{i}",
            client="test",
            prompt=(*PROMPT, 50 + i),
            max_tokens=24,
            ignore_eos=True,
            sampling=SamplingParams(temperature=0.0),
        )
        one.submit(request, sink)
    for _ in range(200):
        one.turn()
    assert all(sink.done.is_set() for sink in sinks)
    return "|".join(sink.text() for sink in sinks)


def on_cpu(path: Path) -> str:
    with engine(path, FakeSystem(), device="cpu") as one:
        return text(one)


def test_texts_pages_and_health_on_a_gpu(path: Path) -> None:
    system = FakeSystem()
    gpu = system.gpu
    with engine(path, system, device="auto") as one:
        idle = one.health()
        assert idle.model is not None
        assert (idle.model.device, idle.kv_pool.backend, idle.kv_pool.page_bytes) == ("cuda:0", "cuda-vmm", PAGE)
        assert (idle.kv_pool.enabled, idle.kv_pool.committed_bytes) == (True, 0)
        assert not gpu.driver_.maps
        assert gpu.reserved() == gpu.allocated()
        said = text(one)
        health = one.health()
        one._serving().pool.check_integrity(deep=True)
        assert health.defect is None
        assert health.kv_pool.peak_committed_bytes > health.kv_pool.committed_bytes > 0
        # Pages given back stay mapped until the helper thread comes to them.
        assert gpu.driver_.wait_for(lambda: len(gpu.driver_.maps) == health.kv_pool.committed_pages)
    assert said == on_cpu(path)
    assert not gpu.driver_.maps
    assert not gpu.driver_.reserved


def test_the_memory_shown_is_the_gpus(path: Path) -> None:
    with engine(path, FakeSystem()) as one:
        text(one)
        memory = one.health().memory
    assert (memory.source, memory.total) == ("gpu", 1 << 30)
    assert [d.name for d in memory.devices] == ["cuda:0", "host"]
    assert (memory.devices[0].available, memory.devices[1].total) == (memory.available, reading().total)
    assert memory.split.outside == FakeGpu().others
    # The CPU's runner names a workspace that the fake GPU does not hold.
    assert split_total(memory.split) - memory.split.workspace == memory.total - memory.available


def test_loading_says_how_far_it_is(path: Path) -> None:
    heard: list[Loading] = []
    load(EngineConfig(model=path, model_name="tiny", device="cuda", parallel=3), heard.append, FakeSystem())
    uploads = [s for s in heard if s.stage == "uploading weights"]
    assert [s.done_bytes for s in uploads] == sorted(s.done_bytes for s in uploads)
    assert 0 < uploads[-1].done_bytes < uploads[-1].total_bytes
    compiling = [(s.done_bytes, s.total_bytes) for s in heard if s.stage == "compiling kernels"]
    assert compiling == [(i, 11) for i in range(11)]  # rounds of 1, 2 and 3 slots, chunks of 2, 4 ... 256 rows


def test_what_the_allocator_keeps_can_be_asked_back() -> None:
    gpu = FakeGpu(_reserved=10 << 20, _allocated=7 << 20)
    blocks = AllocatorBlocks(gpu)
    assert blocks.held_bytes() == 3 << 20
    assert blocks.reclaim(1) == 3 << 20
    assert blocks.held_bytes() == 0


@pytest.mark.parametrize(
    ("given", "why_not", "set_to"),
    [
        ({}, None, "expandable_segments:True"),
        ({}, "the driver has no virtual memory management for device 0", None),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, None, "max_split_size_mb:64"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, None, None),
    ],
)
def test_segments_grow_where_the_driver_maps_pages_and_nobody_chose(
    given: dict[str, str], why_not: str | None, set_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(cuda_system, "supported", lambda _index: why_not)
    cuda_system._let_segments_grow(0)
    assert environment.get("PYTORCH_ALLOC_CONF") == set_to


def test_without_virtual_memory_whole_windows_are_backed_and_it_is_said(path: Path) -> None:
    system = FakeSystem(FakeGpu(no_vmm="the driver has no virtual memory management for device 0"))
    with engine(path, system) as one:
        health: Health = one.health()
        assert (health.kv_pool.backend, health.kv_pool.enabled) == ("cuda-plain", False)
        assert health.kv_pool.committed_bytes == health.kv_pool.reserved_bytes > 0
        assert health.model is not None
        assert health.model.backend is not None
        assert health.model.backend.endswith(
            "; whole windows are backed: the driver has no virtual memory management for device 0"
        )
        said = text(one)
    assert said == on_cpu(path)


def no_addresses(gpu: FakeGpu) -> FakeGpu:
    def reserve(_length: int) -> int:
        raise OSError(2, "CUDA driver: CUDA_ERROR_OUT_OF_MEMORY")

    gpu.driver_.reserve = reserve  # type: ignore[method-assign]
    return gpu


def small() -> FakeGpu:
    return FakeGpu(free=FakeGpu.others + 100_000)


def exhausted() -> FakeGpu:
    return FakeGpu(failure=torch.OutOfMemoryError("CUDA out of memory"))


def unfit() -> FakeGpu:
    return FakeGpu(failure=ValueError("blk.0.attn_output.bias: a bias is not supported on CUDA"))


REFUSALS = [
    (
        small,
        r"cuda:0 \(Fake\) has .* available of 1 GiB, and this model takes .* of weights there and up to .* more",
    ),
    (exhausted, r"cuda:0 \(Fake\) ran out of memory while the model was put there: 1,?019 MiB of 1 GiB was available"),
    (unfit, r"cuda:0 \(Fake\) cannot run this model: blk\.0\.attn_output\.bias: a bias is not supported"),
    (lambda: no_addresses(FakeGpu()), r"cuda:0: 2 windows of 256 tokens .* cannot be reserved .*TANDEM_MAX_LEN"),
]


@pytest.mark.parametrize(("gpu", "words"), REFUSALS)
def test_a_named_gpu_that_does_not_do_is_refused(path: Path, gpu: Callable[[], FakeGpu], words: str) -> None:
    with pytest.raises(UnusableDevice, match=words), engine(path, FakeSystem(gpu())):
        pass


@pytest.mark.parametrize(("gpu", "words"), REFUSALS)
def test_auto_takes_the_cpu_then_and_says_why(path: Path, gpu: Callable[[], FakeGpu], words: str) -> None:
    with engine(path, FakeSystem(gpu()), device="auto") as one:
        model = one.health().model
        assert model is not None
        assert model.device == "cpu"
        assert one.health().kv_pool.backend == "host-mmap"
        assert one.health().memory.source == "host"
        assert model.backend is not None
        before, _, reason = model.backend.partition("; no GPU: ")
        assert before
        assert re.match(words, reason)
        said = text(one)
    assert said == on_cpu(path)
