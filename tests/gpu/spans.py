"""What an engine's thread does when: spans of time by kind, and what a gap between two tokens is made of."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.core.loop import Engine
from engine.execution.cuda.vmm import CudaRange

WHOLE = ("round", "chunk", "admit", "intake", "publish", "sleep")
"""Kinds that follow one another on the engine's thread; every other kind lies within one of them, or beside them."""


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to `end` of `time.perf_counter`."""

    kind: str
    start: float
    end: float

    def within(self, start: float, end: float) -> float:
        return max(0.0, min(self.end, end) - max(self.start, start))


class Spans:
    """Collects spans from functions that it wraps; from any thread."""

    def __init__(self) -> None:
        self.seen: list[Span] = []
        self._undo: list[Callable[[], None]] = []

    def watch(self, owner: Any, name: str, kind: str | Callable[..., str | None]) -> None:
        """Time every call of `owner.name`. A `kind` made from a call's arguments may be None: leave it out."""
        real = getattr(owner, name)

        def timed(*args: Any, **fields: Any) -> Any:
            what = kind if isinstance(kind, str) else kind(*args, **fields)
            start = time.perf_counter()
            try:
                return real(*args, **fields)
            finally:
                if what is not None:
                    self.seen.append(Span(what, start, time.perf_counter()))

        setattr(owner, name, timed)
        self._undo.append(lambda: delattr(owner, name))

    def watch_garbage(self) -> None:
        began: dict[int, float] = {}

        def heard(phase: str, _info: dict[str, int]) -> None:
            now = time.perf_counter()
            if phase == "start":
                began[threading.get_ident()] = now
            else:
                self.seen.append(Span("garbage", began.pop(threading.get_ident(), now), now))

        gc.callbacks.append(heard)
        self._undo.append(lambda: gc.callbacks.remove(heard))

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    def parts(self, start: float, end: float) -> str:
        """What the time from `start` to `end` is made of: ms of each whole kind and what is left, then in brackets what
        lies within or beside them, parts under 0.05 ms left out."""
        whole: dict[str, list[float]] = {}
        inner: dict[str, list[float]] = {}
        for span in self.seen:
            share = span.within(start, end)
            if share > 5e-5:
                (whole if span.kind in WHOLE else inner).setdefault(span.kind, []).append(share)
        other = (end - start) - sum(sum(v) for v in whole.values())
        said = ", ".join(_said(kind, shares) for kind, shares in whole.items())
        details = ", ".join(_said(kind, shares) for kind, shares in inner.items())
        return f"{said or 'nothing'}, other {other * 1e3:.1f}" + (f" [{details}]" if details else "")


def _said(kind: str, shares: list[float]) -> str:
    times = f" in {len(shares)}" if len(shares) > 1 else ""
    return f"{kind} {sum(shares) * 1e3:.1f}{times}"


def _by_thread(engine: threading.Thread | None, what: str, _pages: object) -> str:
    return what if threading.current_thread() is engine else f"{what} on the helper's thread"


@contextmanager
def watching(engine: Engine) -> Iterator[Spans]:
    """Spans of an engine that serves: its steps, and on a GPU passes that are no replay, captures, and page maps."""
    spans = Spans()
    state = engine._serving()
    spans.watch(engine._rounds, "decode_round", "round")
    spans.watch(engine._rounds, "prefill_chunk", "chunk")
    spans.watch(engine._dispatcher, "run", "admit")
    spans.watch(engine._intake, "take", "intake")
    spans.watch(engine._publisher, "publish", "publish")
    spans.watch(engine._inbox, "sleep", "sleep")
    spans.watch(state.pool, "commit", "commit")
    spans.watch(state.pool, "ahead", "hand pages to the helper")
    spans.watch(state.pool, "release", "give pages back")
    program = getattr(state.model.runner, "program", None)
    if program is not None:
        spans.watch(program, "_capture", lambda key, _work: f"capture {key}")
        spans.watch(program, "_replay", lambda key, _work: None if key in program._graphs else f"no graph yet {key}")
    engine_thread = engine._thread
    for entry in state.pool._slots:
        if isinstance(entry.range, CudaRange):
            for name, what in (("_back", "map"), ("_unmap", "unmap")):
                spans.watch(entry.range, name, partial(_by_thread, engine_thread, what))
    spans.watch_garbage()
    try:
        yield spans
    finally:
        spans.stop()
