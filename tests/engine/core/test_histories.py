"""Random histories of clients that come, go, continue, fail and run out of memory, against what each must get."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from engine.execution.rows import RowBatch
from engine.memory.pressure import HardFloor
from engine.request import Admitted, Done, Failed, Finished, FinishReason, RequestError
from tests.engine.core.test_memory_pressure import SharedBox, kv_bytes
from tests.support.fake_model import RecordingSink, Rig, greedy

Make = Callable[..., Rig]
POISON = 499
"""Computing this token's row fails."""
LIMITS = {"queue_timeout", "memory_wait_timeout", "too_large", "request_timeout", "out_of_memory"}


@dataclass
class Client:
    """One request and what became of it."""

    name: str
    prompt: list[int]
    count: int
    choices: int
    sink: RecordingSink
    gone: bool = False

    def check(self) -> None:
        wanted = greedy(self.prompt, self.count)
        for choice in range(self.choices):
            written = self.sink.tokens(choice)
            assert written == wanted[: len(written)]
        ends = [event for event in self.sink.events if isinstance(event, Done | Failed)]
        assert len(ends) <= 1
        if self.gone:
            return
        assert self.sink.events[-1] is ends[0]
        if isinstance(ends[0], Failed):
            code = ends[0].error.code
            assert code in LIMITS or (code == "engine_error" and POISON in self.prompt + wanted)
            return
        served = self.sink.of(Admitted)[0].max_tokens
        assert ends[0].completion_tokens == served * self.choices
        assert POISON not in self.prompt + wanted[: served - 1]
        assert sorted(self.sink.of(Finished), key=lambda f: f.choice) == [
            Finished(choice, FinishReason.LENGTH, served) for choice in range(self.choices)
        ]
        assert all(self.sink.tokens(choice) == wanted[:served] for choice in range(self.choices))


def random_rig(make: Make, rng: random.Random) -> Rig:
    """A rig of random shape on a box that is short of memory every other time, where every row takes a millisecond."""
    slots = rng.choice([1, 2, 3, 5])
    limit = rng.choice([1, 4, 30])
    r = make(
        parallel=slots,
        max_len=256,
        side_max_len=rng.choice([None, 64, 128]),
        prefill_chunk=rng.choice([5, 16, 64]),
        config=lambda c: replace(
            c, floor_bytes=0, hard_floor_bytes=0, queue_timeout_s=20.0, request_timeout_s=60.0, queue_limit=limit
        ),
    )
    state = r.engine._serving()
    box = SharedBox(r, kv_bytes(300) * rng.choice([1, slots]))
    state.memory.probe = box
    assert isinstance(state.pool.guard, HardFloor)
    state.pool.guard._probe = box

    def before(batch: RowBatch) -> None:
        r.clock.advance(0.001 * batch.n)
        if POISON in batch.token:
            raise RuntimeError("a kernel failed")

    r.runner.before = before
    return r


def random_prompt(rng: random.Random, clients: list[Client]) -> list[int]:
    """A new prompt, or one that goes on where an earlier client's text could have been."""
    if clients and rng.random() < 0.5:
        known = rng.choice(clients)
        more = [rng.randrange(1, POISON) for _ in range(rng.randrange(0, 20))]
        prompt = (known.prompt + greedy(known.prompt, rng.randrange(0, 4)) + more)[:255]
    else:
        prompt = [rng.randrange(1, POISON) for _ in range(rng.choice([1, 5, 40, 150]))]
    if rng.random() < 0.05:
        prompt[-1] = POISON
    return prompt


def history(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    r = random_rig(make, rng)
    clients: list[Client] = []
    refused: set[str] = set()
    for number in range(40):
        what = rng.random()
        if what < 0.45:
            prompt = random_prompt(rng, clients)
            client = Client(
                f"c{number}", prompt, rng.choice([1, 3, 20, 60]), rng.choice([1, 1, 1, 2, 3]), RecordingSink()
            )
            fields = {
                "id": client.name,
                "n": client.choices,
                "stream": rng.random() < 0.5,
                "first_user_end": rng.choice([0, len(prompt) // 2]),
                "namespace": rng.choice(["", "", "other"]),
            }
            try:
                _, client.sink = r.submit(prompt, client.count, **fields)
            except RequestError as error:
                refused.add(error.code)
            else:
                clients.append(client)
        elif what < 0.6 and clients:
            client = rng.choice(clients)
            client.gone = True
            r.engine.cancel(client.name)
        elif what < 0.65:
            r.clock.advance(rng.choice([0.3, 3.0, 15.0]))
        else:
            r.turns(rng.randrange(1, 15))
        r.pool.check_integrity()
    r.run_until_idle()
    assert refused <= {"queue_full"}
    for client in clients:
        client.check()
    assert sum(r.engine._serving().counters.endings.values()) == len(clients)


@pytest.mark.parametrize("seed", range(12))
def test_history(rig: Make, seed: int) -> None:
    history(rig, seed)
