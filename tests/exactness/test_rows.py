"""A row's logits, bit for bit: alone, beside others, along a tree, across chunk ends, on one thread or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import SlotRows, pack
from engine.models.llama import LlamaConfig
from kernels.cpu.native import NativeProgram
from kernels.quant_types import QuantType
from tests.kernels.backends import NAMES, named
from tests.support.tiny_model import QWEN_LIKE, TINY, PlainKv, fitting, tiny_tensors

SLOTS = 101
WINDOW = 320
Bits = NDArray[np.uint32]

CASES = [
    *((name, TINY, QuantType.Q4_1, QuantType.Q8_0) for name in NAMES),
    *(("native", TINY, form, form) for form in (QuantType.Q4_0, QuantType.F32)),
    ("native", QWEN_LIKE, QuantType.Q4_0, QuantType.F16),
    ("native", QWEN_LIKE, QuantType.Q4_K, QuantType.Q6_K),
    ("native", TINY, QuantType.Q5_K, QuantType.Q5_K),
]


class Subject:
    """A runner over memory that is NaN until written."""

    def __init__(self, runner: CpuRunner, slots: int = SLOTS, window: int = WINDOW) -> None:
        self.runner = runner
        self.vocab = runner.vocab_size
        self._kv = PlainKv(runner.layout, slots, window)
        self._used: set[int] = set()
        self._long: Bits | None = None
        runner.attach(self._kv, slots)

    def forget(self) -> None:
        """KV memory as it was at first: nothing that an earlier pass wrote can be read."""
        for slot in self._used:
            for tensor in self._kv.arrays[slot]:
                tensor.fill(np.nan)
        self._used.clear()

    def logits(self, *shares: SlotRows) -> Bits:
        program = self.runner._program
        if isinstance(program, NativeProgram):
            program.poison()
        self._used.update(share.slot for share in shares)
        out = self.runner.forward(pack(shares))
        assert np.isfinite(out).all()
        return out.copy().view(np.uint32)

    def path_alone(self, tokens: Sequence[int]) -> Bits:
        """The logits after each of `tokens`, one row a pass with nothing beside it."""
        self.forget()
        rows = [self.logits(SlotRows(0, i, [t], logits=[0])) for i, t in enumerate(tokens)]
        return np.concatenate(rows)

    def paths_alone(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> list[Bits]:
        """For each of `paths`, the logits after its last token: `path_alone` of the prompt and it, with the prompt read
        once."""
        self.path_alone(prompt)
        found = []
        for path in paths:
            rows = [self.logits(SlotRows(0, len(prompt) + i, [t], logits=[0])) for i, t in enumerate(path)]
            found.append(rows[-1][0])
            for tensor in self._kv.arrays[0]:
                tensor[len(prompt) :].fill(np.nan)
        return found

    def long_alone(self, prompt: Sequence[int]) -> Bits:
        """`path_alone`, computed once for the prompt that several tests share."""
        if self._long is None:
            self._long = self.path_alone(prompt)
        return self._long


def tokens_of(random: np.random.Generator, n: int, vocab: int) -> list[int]:
    return [int(t) for t in random.integers(vocab, size=n)]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[2]}-{c[3]}" + ("-qwen" if c[1] is QWEN_LIKE else "")
)
def subject(request: pytest.FixtureRequest) -> Subject:
    name, config, form, head_form = request.param
    # Torch's team waits on a busy box for milliseconds an operation; `test_threads` has it on several.
    return Subject(make(name, config, form, head_form, threads=1 if name == "torch" else 2))


def make(name: str, config: LlamaConfig, form: QuantType, head_form: QuantType, threads: int = 2) -> CpuRunner:
    config = fitting(config, form)
    tensors = tiny_tensors(config, form, head_form)
    return CpuRunner(config, tensors, threads=threads, max_rows=160, backend=named(name))


@pytest.mark.parametrize("neighbours", [2, 3, 4, 8, 16, 100])
def test_batch_neighbours(subject: Subject, neighbours: int) -> None:
    """A decode row among others of other slots, at any place of the pass, with other lengths beside it."""
    random = np.random.default_rng(neighbours)
    mine = tokens_of(random, 12, subject.vocab)
    alone = subject.path_alone(mine)
    subject.forget()
    others = [SlotRows(s, 0, tokens_of(random, 1 + s % 5, subject.vocab)) for s in range(1, neighbours)]
    for i in range(0, len(others), 25):
        subject.logits(*others[i : i + 25])
    subject.logits(SlotRows(0, 0, mine[:-1]))
    place = int(random.integers(neighbours))
    shares = [SlotRows(o.slot, len(o.tokens), tokens_of(random, 1, subject.vocab), logits=[0]) for o in others]
    shares.insert(place, SlotRows(0, len(mine) - 1, mine[-1:], logits=[0]))
    assert np.array_equal(subject.logits(*shares)[place], alone[-1])


@pytest.mark.parametrize("ends", [(150,), (1, 150), (4, 5, 131, 150), (127, 128, 129, 150), (13, 96, 109, 150)])
def test_chunk_ends(subject: Subject, ends: tuple[int, ...]) -> None:
    """A prompt gives the same logits after every token wherever its chunks end, over a split of attention too."""
    prompt = tokens_of(np.random.default_rng(7), 150, subject.vocab)
    alone = subject.long_alone(prompt)
    subject.forget()
    start = 0
    for end in ends:
        got = subject.logits(SlotRows(0, start, prompt[start:end], logits=range(end - start)))
        assert np.array_equal(got, alone[start:end])
        start = end


def test_tree_paths(subject: Subject) -> None:
    """Each node of a tree has the logits of its path read alone."""
    random = np.random.default_rng(11)
    prompt = tokens_of(random, 126, subject.vocab)
    nodes = tokens_of(random, 7, subject.vocab)
    parents = [-1, 0, 0, 2, -1, 3, 4]
    paths = [[0], [0, 1], [0, 2], [0, 2, 3], [4], [0, 2, 3, 5], [4, 6]]
    alone = subject.paths_alone(prompt, [[nodes[i] for i in path] for path in paths])
    subject.forget()
    subject.logits(SlotRows(0, 0, prompt))
    got = subject.logits(SlotRows(0, len(prompt), nodes, parents=parents, logits=range(len(nodes))))
    for node, expected in enumerate(alone):
        assert np.array_equal(got[node], expected), f"node {node}"


def test_copied_rows(subject: Subject) -> None:
    """A slot whose rows were copied from another goes on as if it had read them."""
    prompt = tokens_of(np.random.default_rng(12), 70, subject.vocab)
    alone = subject.path_alone(prompt)
    subject.forget()
    subject.logits(SlotRows(3, 0, prompt[:64]), SlotRows(5, 0, prompt[:20]))
    subject.runner.copy_rows(3, 5, 20, 64)
    got = subject.logits(SlotRows(5, 64, prompt[64:], logits=range(6)), SlotRows(3, 64, prompt[64:65], logits=[0]))
    assert np.array_equal(got, np.concatenate([alone[64:], alone[64:65]]))


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_one_entry(subject: Subject, slots: int) -> None:
    """A three-node tree, a prompt chunk and plain decode through one forward, each row as its path alone."""
    check_one_entry(subject, slots, prefix=40, chunk=37)


def check_one_entry(subject: Subject, slots: int, prefix: int, chunk: int) -> None:
    random = np.random.default_rng(slots)
    kinds = ["tree", "chunk", "decode"]
    mine = [kinds[i % 3] if slots > 1 else "tree" for i in range(slots)]
    before = [tokens_of(random, prefix + 3 * s, subject.vocab) for s in range(slots)]
    size = {"tree": 3, "chunk": chunk, "decode": 1}
    new = [tokens_of(random, size[kind], subject.vocab) for kind in mine]
    expected: list[Bits] = []
    for s, kind in enumerate(mine):
        if kind == "tree":
            expected.extend(
                subject.paths_alone(before[s], [[new[s][i] for i in path] for path in ([0], [0, 1], [0, 2])])
            )
        else:
            expected.extend(subject.path_alone(before[s] + new[s])[len(before[s]) :])
    subject.forget()
    for s in range(slots):
        subject.logits(SlotRows(s, 0, before[s]))
    shares = [
        SlotRows(s, len(before[s]), new[s], [-1, 0, 0] if kind == "tree" else None, range(len(new[s])))
        for s, kind in enumerate(mine)
    ]
    got = subject.logits(*shares)
    assert np.array_equal(got, np.stack(expected))


@pytest.mark.parametrize("name", NAMES)
def test_threads(name: str) -> None:
    """One thread and two compute the same bits."""
    random = np.random.default_rng(5)
    prompt = tokens_of(random, 140, TINY.vocab)
    results = []
    for threads in (1, 2, 3):
        subject = Subject(make(name, TINY, QuantType.Q4_1, QuantType.Q8_0, threads), slots=2)
        read = subject.logits(SlotRows(0, 0, prompt[:-1], logits=range(139)), SlotRows(1, 0, [3], logits=[0]))
        step = subject.logits(SlotRows(0, 139, prompt[-1:], logits=[0]), SlotRows(1, 1, [4], logits=[0]))
        results.append(np.concatenate([read, step]))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_a_broken_neighbour_stays_alone() -> None:
    """Another slot's non-finite KV, and rows of a tile that come later, never reach a row."""
    random = np.random.default_rng(9)
    prompt = tokens_of(random, 20, TINY.vocab)
    subject = Subject(make("native", TINY, QuantType.Q4_1, QuantType.Q8_0), slots=2)
    alone = subject.path_alone(prompt)
    subject.forget()
    subject.logits(SlotRows(0, 0, prompt[:10]))
    # Slot 1 claims ten rows that nothing wrote: its logits are NaN, which `logits` would refuse.
    out = subject.runner.forward(
        pack([SlotRows(0, 10, prompt[10:], logits=range(10)), SlotRows(1, 10, [1, 2, 3], logits=[2])])
    )
    assert np.isnan(out[-1]).any()
    assert np.array_equal(out[:10].copy().view(np.uint32), alone[10:])
