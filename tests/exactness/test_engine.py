"""Through the whole engine on the real CPU runner: tokens and log-probabilities alone and beside others, bit for
bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.boot import Parts
from engine.core.loading import load
from engine.core.loop import Engine
from engine.memory.probe import FixedProbe
from engine.request import Admitted, Request, SamplingParams, Text, TokenLogprob
from tests.support.fake_model import RecordingSink, reading
from tests.support.gguf_files import TinyLlama, write_tiny_llama
from tests.support.models import default_model

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=17)
MOST_TURNS = 10_000


@dataclass(frozen=True)
class Ask:
    """A prompt, how it is sampled, and how many turns pass before the next one comes."""

    prompt: tuple[int, ...]
    count: int
    params: SamplingParams
    then_turns: int = 0


@contextmanager
def engine(path: Path, *, parallel: int, chunk: int, max_len: int) -> Iterator[Engine]:
    """A loaded engine whose turns the test runs itself."""
    config = EngineConfig(
        model=path,
        model_name="m",
        parallel=parallel,
        max_len=max_len,
        prefill_chunk=chunk,
        threads=2,
        decode_share=0.0,  # a chunk between any two rounds: the most batch neighbours that there can be
        queue_limit=64,
        side_slot0_wait_s=0.0,
        side_home_wait_s=0.0,
    )
    one = Engine(config, Parts(load=load, probe=lambda: FixedProbe(reading())))
    one.load()
    try:
        yield one
    finally:
        one.close()


def answers(one: Engine, asks: Sequence[Ask], *, namespace: str = "") -> list[RecordingSink]:
    """Submit the asks with their turns in between, and run until all are answered."""
    sinks = []
    for number, ask in enumerate(asks):
        sink = RecordingSink()
        request = Request(
            id=f"{namespace}-{number}",
            client="test",
            prompt=ask.prompt,
            first_user_end=1,
            max_tokens=ask.count,
            ignore_eos=True,
            logprobs=3,
            sampling=ask.params,
            namespace=namespace,
        )
        one.submit(request, sink)
        sinks.append(sink)
        for _ in range(ask.then_turns):
            one.turn()
    for _ in range(MOST_TURNS):
        if all(sink.done.is_set() for sink in sinks):
            return sinks
        one.turn()
    raise AssertionError(f"not done after {MOST_TURNS} turns")


def sampled(sink: RecordingSink) -> list[TokenLogprob]:
    """The tokens with their log-probabilities, which hang on every logit of the row."""
    return [logprob for event in sink.of(Text) for logprob in event.logprobs]


def asks(vocab: int, lengths: Sequence[int], count: int) -> list[Ask]:
    return [
        Ask(
            tuple((7 * i + 3 * n + n * n) % (vocab - 8) + 5 for i in range(length)),
            count + n,
            GREEDY if n % 2 else SAMPLED,
            then_turns=n % 4,
        )
        for n, length in enumerate(lengths)
    ]


def alone(path: Path, some: Sequence[Ask], max_len: int) -> list[list[TokenLogprob]]:
    with engine(path, parallel=1, chunk=64, max_len=max_len) as one:
        return [sampled(answers(one, [ask], namespace=str(n))[0]) for n, ask in enumerate(some)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyLlama())


@pytest.fixture(scope="module")
def many() -> list[Ask]:
    return asks(270, [3, 40, 150, 1, 64, 17, 90, 33, 128, 5], 24)


@pytest.fixture(scope="module")
def many_alone(tiny: Path, many: list[Ask]) -> list[list[TokenLogprob]]:
    answered = alone(tiny, many, 256)
    assert len({token.token for answer in answered for token in answer}) > 20
    return answered


@pytest.mark.parametrize(("slots", "chunk"), [(1, 16), (2, 7), (4, 16), (8, 64)])
def test_company_changes_no_bit(
    tiny: Path, many: list[Ask], many_alone: list[list[TokenLogprob]], slots: int, chunk: int
) -> None:
    with engine(tiny, parallel=slots, chunk=chunk, max_len=256) as one:
        assert [sampled(sink) for sink in answers(one, many)] == many_alone
        assert one.health().parallel.peak_decoding == slots


def test_a_resumed_read_changes_no_bit(tiny: Path) -> None:
    """Each prompt again over a warm slot, and again from the middle of another conversation."""
    first = asks(270, [100, 60], 10)
    forked = [Ask((*ask.prompt[:45], *range(9, 40)), 10, GREEDY) for ask in first]
    expected = alone(tiny, [*first, *forked], 256)
    with engine(tiny, parallel=2, chunk=16, max_len=256) as one:
        cold = answers(one, first)
        warm = answers(one, first, namespace="")
        fork = answers(one, forked, namespace="")
    assert [sampled(s) for s in cold] == [sampled(s) for s in warm] == expected[:2]
    assert [s.of(Admitted)[0].cached_tokens for s in warm] == [99, 59]
    assert [sampled(s) for s in fork] == expected[2:]
    assert [s.of(Admitted)[0].cached_tokens for s in fork] == [45, 45]


@pytest.mark.model
def test_company_changes_no_bit_of_the_built_in_model() -> None:
    path = default_model()
    some = asks(40_000, [5, 60, 33, 80], 12)
    expected = alone(path, some, 512)
    with engine(path, parallel=4, chunk=32, max_len=512) as one:
        assert [sampled(sink) for sink in answers(one, some)] == expected
        assert one.health().parallel.peak_decoding == 4
