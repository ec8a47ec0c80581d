"""A long prompt that arrives beside running streams, through the engine's loop: the streams' gaps, its first token."""

from __future__ import annotations

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from engine import protocol
from engine.api import ServedModel
from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loop import Engine
from engine.execution.cuda.gpu import TorchGpu
from engine.execution.cuda.loading import MAX_ROWS, gpu_memory, passes_to_compile
from engine.execution.cuda.memory import GpuProbe, KvMemory
from engine.execution.cuda.runner import CudaRunner
from engine.execution.devices import look
from engine.models.llama import LlamaConfig, kv_layout
from engine.request import Done, Event, Failed, Request, SamplingParams, Text
from engine.service import SWITCH_INTERVAL_S
from tests.gpu.setting import SHAPES, build, row
from tests.gpu.spans import watching
from tests.support.fake_model import FakeTokenizer

WORST = 6
"""Gaps that are taken apart."""


@dataclass
class TimedSink:
    """When each token came, by `time.perf_counter`."""

    at: list[float] = field(default_factory=list)
    failed: Failed | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, event: Event) -> None:
        if isinstance(event, Text) and event.tokens:
            self.at.append(time.perf_counter())
            self.begun.set()
        elif isinstance(event, Failed):
            self.failed = event
        if isinstance(event, Done | Failed):
            self.begun.set()
            self.ended.set()


class SeededRunner(CudaRunner):
    """The GPU's runner over random weights, for shapes that no file here has."""

    def __init__(self, config: LlamaConfig, max_rows: int) -> None:
        self.program = build(config, max_rows)
        self.config = config
        self.max_rows = max_rows
        self.vocab_size = config.vocab
        self.layout = kv_layout(config)
        self.backend, self.backend_reason = self.program.name, "random weights"
        self._device = torch.device("cuda")
        self._base = None
        self._device_base = torch.empty(0, dtype=torch.int64, device="cuda")
        self._windows = np.zeros(0, np.int64)


@dataclass
class Loaded:
    """What the loader hands over."""

    runner: CudaRunner
    served: ServedModel
    info: protocol.Model
    kv_memory: KvMemory | None


def load_seeded(config: LlamaConfig, parallel: int) -> Loaded:
    """A model of that shape on the first GPU."""
    gpu = look().found[0]
    opened = TorchGpu(gpu)
    baseline = GpuProbe(opened.allocator).read()
    runner = SeededRunner(config, MAX_ROWS)
    for slots, rows in passes_to_compile(parallel, MAX_ROWS):
        runner.warm_up(slots, rows)
    served = ServedModel("seeded", 0, config.context, FakeTokenizer(config.vocab), None)
    weights = protocol.Weights(bytes=runner.weight_bytes(), forms=[])
    info = protocol.Model(name="seeded", arch="llama", max_len=config.context, device=gpu.device, weights=weights)
    return Loaded(runner, served, info, gpu_memory(opened, gpu, baseline))


def drive(
    engine: Engine, vocab: int, *, prompt: int, decoders: int, context: int, answer: int, settle: float = 0.5
) -> list[str]:
    """A prompt of `prompt` tokens alone, then beside `decoders` streams at `context` tokens: a sentence of figures, and
    what the worst gaps are made of."""
    random = np.random.default_rng(5)
    ids = iter(range(1 << 30))

    def submit(length: int, most: int) -> tuple[TimedSink, float]:
        sink = TimedSink()
        tokens = tuple(int(t) for t in random.integers(1, vocab, length))
        greedy = SamplingParams(temperature=0.0)
        at = time.perf_counter()
        engine.submit(
            Request(f"req-{next(ids)}", "bench", tokens, max_tokens=most, ignore_eos=True, sampling=greedy), sink
        )
        return sink, at

    def first_token(sink: TimedSink, at: float) -> float:
        if not sink.begun.wait(120) or sink.failed is not None:
            raise RuntimeError(f"no first token: {sink.failed}")
        return sink.at[0] - at

    def alone() -> float:
        sink, at = submit(prompt, 2)
        seconds = first_token(sink, at)
        sink.ended.wait(60)
        return seconds

    alone()
    lone = min(alone() for _ in range(3))
    streams = [submit(context, answer)[0] for _ in range(decoders)]
    for stream in streams:
        first_token(stream, 0.0)
    time.sleep(settle)
    steady_from = time.perf_counter()
    time.sleep(2 * settle)

    def gaps(start: float, end: float) -> list[float]:
        return [b - a for s in streams for a, b in pairwise(s.at) if a >= start and b <= end]

    rounds = statistics.median(gaps(steady_from, time.perf_counter()))
    with watching(engine) as spans:
        reader, asked = submit(prompt, 2)
        beside = first_token(reader, asked)
        time.sleep(4 * rounds)  # the gap in which it came has an end, too
    come = reader.at[0]
    for stream in streams:
        stream.ended.wait(120)

    during = sorted(
        ((b - a, a, b) for s in streams for a, b in pairwise(s.at) if b >= asked and a <= come), reverse=True
    )
    if min(s.at[-1] for s in streams) < come:
        raise RuntimeError("a stream ended before the prompt was read: ask for longer answers")
    chunks = -(-prompt // engine._serving().chunk)
    limit = 2 * rounds + lone / chunks
    figures = (
        f"prompt of {prompt} beside {decoders} streams at {context}+: first token {beside * 1e3:.0f} ms, alone "
        f"{lone * 1e3:.0f} ms: {beside / lone:.2f}x; worst gap {during[0][0] * 1e3:.1f} ms, two median rounds of "
        f"{rounds * 1e3:.2f} ms and a chunk make {limit * 1e3:.1f} ms; tokens written meanwhile {len(during)}"
    )
    # The streams' gaps end together: one line for each round.
    ends: list[float] = []
    worst = []
    for gap, start, end in during:
        if len(worst) < WORST and all(abs(end - other) > rounds / 2 for other in ends):
            ends.append(end)
            when = f"{(end - asked) * 1e3:.0f} ms after it came"
            worst.append(f"  gap {gap * 1e3:.1f} ms, {when}: {spans.parts(start, end)}")
    return [figures, *worst]


def beside(shape: str, shares: tuple[float | None, ...] = (None, 0.5)) -> None:
    """8k tokens beside four streams at each decode share; None is the default of a GPU."""
    config = replace(SHAPES[shape], context=12288)
    for share in shares:
        name = "default share" if share is None else f"share {share}"
        figures, *worst = on_gpu(config, share)
        row(f"{shape}, {name}: {figures}")
        for line in worst:
            row(line)


def on_gpu(config: LlamaConfig, share: float | None) -> list[str]:
    """One measurement through an engine of its own."""
    made: Callable[..., Loaded] = lambda _config, _progress: load_seeded(config, 5)  # noqa: E731
    engine = Engine(
        EngineConfig(Path("seeded"), "seeded", parallel=5, max_len=12288, decode_share=share, device="cuda"),
        Parts(load=made),
    )
    with as_in_a_service(engine):
        return drive(engine, config.vocab, prompt=8192, decoders=4, context=1024, answer=1200)


@contextmanager
def as_in_a_service(engine: Engine) -> Iterator[None]:
    """Start and end `engine` with the interpreter set as a service sets it."""
    with switching_as_served():
        gc.disable()
        engine.start()
        try:
            engine.wait_ready()
            gc.freeze()
            gc.enable()
            yield
        finally:
            engine.close(10)
            gc.enable()
            gc.unfreeze()
            torch.cuda.empty_cache()


@contextmanager
def switching_as_served() -> Iterator[None]:
    """The interpreter changes threads as often as in a service."""
    kept = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(kept)
