"""A model without weights whose next token depends on every KV row that it sees, and the fakes around it.

Each row writes a mark of its (token, position) into the pool's real memory, through the addresses that the pool
gives out. A row's logits come from a sum over the marks of all rows on its path, each weighed by its position: a KV row
that is missing, stale, shifted, or another slot's changes the answer.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine import protocol
from engine.api import ServedModel
from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loop import Engine
from engine.execution.cuda.memory import KvMemory
from engine.execution.rows import RowBatch
from engine.execution.runner import KvAddresses, StepOutput, sample_all
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.probe import FixedProbe, MemoryReading
from engine.request import Event, Request, SamplingParams, Text
from kernels.sampling import SamplingSpec

VOCAB = 512
EOS = 0
ROW_BYTES = 4096
"""Wide rows, so that a page holds 16 of them and the books move."""
LAYOUT = KvLayout((KvTensor("engine", 0, "k", ROW_BYTES), KvTensor("engine", 0, "v", ROW_BYTES)))
GIB = 1 << 30

EventT = TypeVar("EventT")
_TABLE = np.random.default_rng(7).standard_normal(VOCAB).astype(np.float32) * 3
_U = np.uint64


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64, elementwise."""
    with np.errstate(over="ignore"):
        value = (value + _U(0x9E3779B97F4A7C15)).astype(np.uint64)
        value = (value ^ (value >> _U(30))) * _U(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> _U(27))) * _U(0x94D049BB133111EB)
        return value ^ (value >> _U(31))


def marks(tokens: Sequence[int] | NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What each row writes."""
    return _mix(np.asarray(tokens, np.uint64) * _U(1_000_003) + positions.astype(np.uint64))


def logits_of(seen: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Logits after a path whose rows left these marks, in order of position."""
    weights = _mix(np.arange(len(seen), dtype=np.uint64))
    with np.errstate(over="ignore"):
        total = int((seen * weights).sum(dtype=np.uint64))
    turned = np.roll(_TABLE, total % VOCAB)
    return turned * np.float32(0.5 + (total >> 20) % 64 / 64)


def next_logits(path: Sequence[int]) -> NDArray[np.float32]:
    """The model's logits after `path`: the rule, without any KV."""
    return logits_of(marks(path, np.arange(len(path))))


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that the model writes greedily after `prompt`, past any end-of-text token."""
    path = list(prompt)
    for _ in range(count):
        path.append(int(next_logits(path).argmax()))
    return path[len(prompt) :]


def _column(address: int, rows: int) -> NDArray[np.uint64]:
    """The first eight bytes of each KV row."""
    words = ROW_BYTES // 8
    return np.ctypeslib.as_array((ctypes.c_uint64 * (rows * words)).from_address(address))[::words]


@dataclass
class FakeClock:
    """Seconds that pass only where a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeRunner:
    """Implements `engine.execution.runner.Runner`. `passes` lists each forward as (slot, rows) pairs.

    `before` is called with each batch: it may raise, block, or move a clock. A row of `poison` makes its logits NaN.
    """

    layout = LAYOUT
    vocab_size = VOCAB

    def __init__(self, before: Callable[[RowBatch], None] | None = None, max_rows: int = 512) -> None:
        self.max_rows = max_rows
        self.before = before
        self.poison: int | None = None
        self.passes: list[dict[int, int]] = []
        self._kv: KvAddresses | None = None
        self._buffer = np.zeros((64, VOCAB), np.float32)

    def attach(self, kv: KvAddresses, slots: int) -> None:
        self._kv = kv
        self._views = [
            [_column(kv.base(slot, tensor), kv.window(slot)) for tensor in range(len(LAYOUT.tensors))]
            for slot in range(slots)
        ]

    def forward(self, batch: RowBatch) -> NDArray[np.float32]:
        shares: dict[int, int] = {}
        for slot in batch.slot.tolist():
            shares[slot] = shares.get(slot, 0) + 1
        self.passes.append(shares)
        if self.before is not None:
            self.before(batch)
        written = marks(batch.token, batch.position.astype(np.int64))
        for slot, row, mark in zip(batch.slot.tolist(), batch.kv_row.tolist(), written, strict=True):
            self._views[slot][0][row] = mark
            self._views[slot][1][row] = ~mark
        out = self._buffer[: len(batch.logit_rows)]
        for i, row in enumerate(batch.logit_rows.tolist()):
            out[i] = self._logits(batch, row)
        return out

    def forward_and_sample(self, batch: RowBatch, draws: Sequence[SamplingSpec | None]) -> list[StepOutput]:
        return sample_all(self.forward(batch), draws)

    def _logits(self, batch: RowBatch, row: int) -> NDArray[np.float32]:
        keys, values = self._views[int(batch.slot[row])]
        path = batch.ancestors[batch.ancestor_start[row] : batch.ancestor_start[row + 1]]
        at = np.concatenate((np.arange(batch.prefix[row]), path))
        if not np.array_equal(keys[at], ~values[at]):
            raise AssertionError(f"row {row} sees KV rows whose K and V do not belong together")
        if self.poison is not None and int(batch.token[row]) == self.poison:
            return np.full(VOCAB, np.nan, np.float32)
        return logits_of(keys[at])

    def copy_rows(self, source: int, target: int, start: int, end: int) -> None:
        for to, view in zip(self._views[target], self._views[source], strict=True):
            to[start:end] = view[start:end]

    def workspace_bytes(self) -> int:
        return 0


class FakeTokenizer:
    """Token `t` reads as its number and a space, so a text shows its tokens."""

    eos_ids = frozenset({EOS})
    bos_id = None

    def __init__(self, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [int(word) for word in text.split()]

    def prompt_ids(self, text: str, *, special: bool = False) -> list[int]:
        return self.encode(text)

    def control_token(self, spelling: str) -> int | None:
        """Token `t` is spelled `<t>`."""
        return int(spelling[1:-1]) if spelling.startswith("<") else None

    def least_tokens(self, text: str) -> int:
        return 0

    def token_bytes(self, token: int) -> bytes:
        return f"{token} ".encode()

    def token_text(self, token: int) -> str:
        return f"{token} "


@dataclass
class FakeModel:
    """What a loader returns."""

    runner: FakeRunner
    served: ServedModel
    info: protocol.Model
    kv_memory: KvMemory | None = None


def fake_model(runner: FakeRunner, max_len: int) -> FakeModel:
    weights = protocol.Weights(bytes=0, forms=[])
    return FakeModel(
        runner=runner,
        served=ServedModel(name="fake", created=0, max_len=max_len, tokenizer=FakeTokenizer(), template=None),
        info=protocol.Model(name="fake", arch="fake", max_len=max_len, device="cpu", weights=weights),
    )


@dataclass
class RecordingSink:
    """Keeps a request's events."""

    events: list[Event] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def put(self, event: Event) -> None:
        self.events.append(event)
        if type(event).__name__ in ("Done", "Failed"):
            self.done.set()

    def of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, choice: int = 0) -> str:
        return "".join(event.text for event in self.of(Text) if event.choice == choice)

    def tokens(self, choice: int = 0) -> list[int]:
        return [int(word) for word in self.text(choice).split()]


def reading(available: int = 20 * GIB, total: int = 24 * GIB) -> MemoryReading:
    return MemoryReading(source="host", total=total, available=available, occupied=total - available, own=0)


class Rig:
    """An engine over the fake model, driven turn by turn on the test's own thread, with a fake clock and memory."""

    def __init__(
        self,
        *,
        parallel: int = 2,
        max_len: int = 256,
        side_max_len: int | None = None,
        prefill_chunk: int = 16,
        config: Callable[[EngineConfig], EngineConfig] = lambda c: c,
    ) -> None:
        self.clock = FakeClock()
        self.runner = FakeRunner()
        self.probe = FixedProbe(reading())
        base = EngineConfig(
            model=Path("fake"),
            model_name="fake",
            parallel=parallel,
            max_len=max_len,
            side_max_len=side_max_len,
            prefill_chunk=prefill_chunk,
            kv_margin_rows=8,
            queue_limit=64,
        )
        self.config = config(base)
        model = fake_model(self.runner, max_len)
        parts = Parts(load=lambda _config, _progress: model, probe=lambda: self.probe, clock=self.clock)
        self.engine = Engine(self.config, parts)
        self.engine.load()
        self._ids = 0

    @property
    def pool(self):  # type: ignore[no-untyped-def]
        return self.engine._serving().pool

    def submit(self, prompt: Sequence[int], max_tokens: int | None = 8, **fields: object) -> tuple[str, RecordingSink]:
        """Submit a greedy request that writes past end-of-text tokens, unless `fields` say otherwise."""
        self._ids += 1
        sink = RecordingSink()
        values: dict[str, object] = {
            "id": f"req-{self._ids}",
            "client": "test",
            "prompt": tuple(prompt),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "sampling": SamplingParams(temperature=0.0),
            **fields,
        }
        request = Request(**values)  # type: ignore[arg-type]
        self.engine.submit(request, sink)
        return request.id, sink

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.engine.turn()

    def turns_until(self, reached: Callable[[], object], limit: int = 5000) -> None:
        for _ in range(limit):
            if reached():
                return
            self.engine.turn()
        raise AssertionError(f"not reached after {limit} turns")

    def run_until_idle(self) -> None:
        """Turn until nothing is left to do."""
        self.engine.turn()
        self.turns_until(lambda: not self.engine._serving().requests)

    def check(self) -> None:
        """What holds whenever nothing runs."""
        state = self.engine._serving()
        self.pool.check_integrity(deep=True)
        assert not state.requests
        assert not state.queue
        assert state.memory.reservations.outstanding() == 0
        page = self.pool.stats().page_bytes
        for slot in state.slots:
            assert slot.running is None
            rows = slot.state.rows if self.config.kv_pool else slot.window
            pages = -(-rows * ROW_BYTES // page)
            assert self.pool.committed_bytes(slot.id) == pages * page * len(LAYOUT.tensors)
            held = state.resident.of(slot)
            assert (0 if held is None else len(held.key.tokens)) == slot.state.rows

    def close(self) -> None:
        self.engine.close()
