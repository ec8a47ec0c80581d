"""The built-in model in a process of its own, asked over bare sockets: what clients do, and that no one else notices.

One engine for the whole module, two slots and a queue of two. Each test leaves it idle, with the books in order.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from engine.protocol import Health
from tandem.client.wire import Address, health
from tests.service.conftest import LONG_S, Box, make_box
from tests.support.scripted_engine import wait_until
from tests.support.sockets import heard_until

pytestmark = [pytest.mark.service, pytest.mark.model]

COMPLETIONS = "/v1/completions"
WINDOW = 1024
TENSORS = 60
ROW_BYTES = 3 * 64 * 2
"""Of one tensor: three KV heads of 64 values of two bytes."""


def tokens(count: int, salt: int) -> list[int]:
    """A prompt of its own for each `salt`."""
    return [(7 * i + 131 * salt + i * i) % 40_000 + 10 for i in range(count)]


LONG = tokens(1000, 1)
SHORT = tokens(12, 2)


def asking(**fields: Any) -> dict[str, Any]:
    return {"prompt": SHORT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields}


@dataclass(frozen=True)
class Serving:
    """The engine, and short ways to ask it."""

    box: Box
    client: httpx.Client

    def post(self, **fields: Any) -> httpx.Response:
        return self.client.post(COMPLETIONS, json=asking(**fields))

    def choice(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    def health(self) -> Health:
        return health(Address.of(f"http://127.0.0.1:{self.box.port}"))

    @contextmanager
    def asked(self, **fields: Any) -> Iterator[socket.socket]:
        """A request over a bare socket; leaving the block is the client's leaving."""
        body = json.dumps(asking(**fields)).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.box.port), timeout=LONG_S) as opened:
            opened.sendall(head.encode() + body)
            yield opened

    @contextmanager
    def streaming(self, **fields: Any) -> Iterator[None]:
        """A stream that has begun to write, for as long as the block lasts."""
        with self.asked(stream=True, max_tokens=900, **fields) as opened:
            heard_until(opened, b'"text":"')
            yield

    def lanes(self, state: str) -> bool:
        return any(lane.state == state for lane in self.health().lanes)

    def idle(self) -> bool:
        parallel = self.health().parallel
        return (parallel.running, parallel.waiting) == (0, 0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    box = make_box(tmp_path_factory.mktemp("cases"))
    box.env["TANDEM_QUEUE_LIMIT"] = "2"
    started = box.tandem("start")
    assert started.returncode == 0, started.stderr
    with httpx.Client(base_url=f"http://127.0.0.1:{box.port}", timeout=LONG_S) as client:
        yield Serving(box, client)
    assert box.tandem("stop").returncode == 0


@pytest.fixture
def served(engine: Serving) -> Iterator[Serving]:
    """The engine; after the test it must be idle, with no page more than its conversations' rows need."""
    yield engine
    assert wait_until(engine.idle)
    seen = engine.health()
    assert seen.defect is None
    assert (seen.status, seen.parallel.totals.errors, seen.kv_pool.refused) == ("ok", 0, 0)
    pages = [TENSORS * -(-lane.rows * ROW_BYTES // seen.kv_pool.page_bytes) for lane in seen.lanes]
    assert [size // seen.kv_pool.page_bytes for size in seen.kv_pool.by_slot] == pages
    assert sum(seen.kv_pool.by_kind.values()) == seen.kv_pool.committed_bytes == sum(seen.kv_pool.by_slot)
    assert all((lane.state, lane.request) == ("idle", None) for lane in seen.lanes)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_leaves_in_a_long_read(served: Serving, stream: bool) -> None:
    before = served.health().parallel.totals.abandoned
    prompt = tokens(1000, 3 + stream)
    with served.asked(prompt=prompt, stream=stream):
        assert wait_until(lambda: served.lanes("prefilling"))
    assert wait_until(served.idle)
    seen = served.health()
    assert seen.parallel.totals.abandoned == before + 1
    assert all(lane.rows < len(prompt) for lane in seen.lanes)


def test_a_client_leaves_the_queue(served: Serving) -> None:
    with served.streaming(), served.streaming(prompt=tokens(9, 5)):
        before = served.health().parallel.totals.abandoned
        with served.asked(prompt=LONG, stream=True) as third:
            assert b"x-tandem-wait: slot" in third.recv(4096)
            assert [entry.reason for entry in served.health().queue] == ["all 2 slots are busy"]
        assert wait_until(lambda: served.health().parallel.waiting == 0)
        assert served.health().parallel.totals.abandoned == before + 1


def test_the_queue_is_bounded(served: Serving) -> None:
    answers: list[httpx.Response] = []

    def ask(number: int) -> None:
        answers.append(served.post(prompt=tokens(5, number), max_tokens=1))

    with ThreadPoolExecutor(20) as pool:
        with served.streaming(), served.streaming(prompt=tokens(9, 5)):
            asks = [pool.submit(ask, number) for number in range(20)]
            assert wait_until(lambda: len(answers) == 18)
            assert {(a.status_code, a.headers.get("retry-after")) for a in answers} == {(503, "5")}
        for one in asks:
            one.result(LONG_S)
    assert sorted(a.status_code for a in answers) == [200] * 2 + [503] * 18


def test_clients_that_come_and_go_change_no_text(served: Serving) -> None:
    """A text written while others come, send rubbish and leave is the one that is written alone."""
    alone = served.choice(max_tokens=80, logprobs=3)
    company: list[dict[str, Any]] = []
    writer = threading.Thread(target=lambda: company.append(served.choice(max_tokens=80, logprobs=3)))
    shared = served.health().parallel.rounds["2"]
    writer.start()
    with served.streaming(prompt=tokens(5, 6)):
        assert wait_until(lambda: served.health().parallel.rounds["2"] > shared)
    for visit in range(2 * len(VISITS)):
        fields = VISITS[visit % len(VISITS)]
        with served.asked(**{"prompt": tokens(5 + 40 * (visit % 5), visit), **fields}) as opened:
            opened.settimeout(0.05)
            with suppress(TimeoutError):
                opened.recv(4096)
    writer.join(LONG_S)
    assert company == [alone]


VISITS: list[dict[str, Any]] = [
    {"stream": True},
    {"n": 4, "temperature": 1},
    {"prompt": [49_152]},
    {"logit_bias": {str(token): -100 for token in range(300)}, "stop": ["🎉", "é"]},
    {"temperature": -1},
    {"max_tokens": 10**30, "stream": True, "repetition_penalty": 100},
    {"prompt": "x " * 3000},
]


def four_over_two_slots(served: Serving, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers to a request that is sent four times: four at once would be one too many for the queue until two of
    them have their slots."""
    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(served.choice, **fields) for _ in range(2)]
        assert wait_until(lambda: served.health().parallel.running == 2 or all(one.done() for one in first))
        then = [pool.submit(served.choice, **fields) for _ in range(2)]
        return [one.result(LONG_S) for one in first + then]


def test_one_prompt_alone_together_and_warm(served: Serving) -> None:
    """The same seeded request alone, eight times over two slots, and over what it left: one text."""
    fields = {"prompt": tokens(300, 8), "temperature": 0.9, "seed": 11, "max_tokens": 12, "logprobs": 2}
    alone = served.choice(**fields)
    for _ in range(2):
        assert four_over_two_slots(served, fields) == [alone] * 4
    again = served.post(**fields).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 299
    assert again["choices"] == [alone]


def test_a_stop_string_over_several_tokens(served: Serving) -> None:
    prompt = "A short letter to a friend about the harbour:"
    whole = str(served.choice(prompt=prompt)["text"])
    stop = next(whole[i : i + 12] for i in range(20, len(whole) - 12) if whole.index(whole[i : i + 12]) == i)

    def streamed(**fields: Any) -> tuple[str, str]:
        chunks = data_of(served.post(prompt=prompt, stream=True, **fields))
        choices = [chunk["choices"][0] for chunk in chunks]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]

    def unstreamed(**fields: Any) -> tuple[str, str]:
        choice = served.choice(prompt=prompt, **fields)
        return choice["text"], choice["finish_reason"]

    for asked in (streamed, unstreamed):
        assert asked(stop=[stop]) == (whole[: whole.index(stop)], "stop")
        assert asked(stop=[whole[-6:] + "\0"]) == (whole, "length")


@pytest.mark.parametrize("fields", [{"top_k": 1, "temperature": 1}, {"temperature": 1, "seed": 5, "top_p": 0.5}])
def test_log_probabilities_are_the_same_streamed_and_not(served: Serving, fields: dict[str, Any]) -> None:
    whole = served.choice(logprobs=5, max_tokens=10, **fields)["logprobs"]
    chunks = data_of(served.post(logprobs=5, max_tokens=10, stream=True, **fields))
    parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts for entry in part[name]] == whole[name]
    assert len(whole["tokens"]) == 10
    assert all(isinstance(value, float) for value in whole["token_logprobs"])


def test_every_chunk_of_a_stream(served: Serving) -> None:
    response = served.post(stream=True, stream_options={"include_usage": True})
    *texts, end, usage = data_of(response)
    assert response.text.endswith("data: [DONE]\n\n")
    assert all((c["choices"][0]["finish_reason"], c["usage"]) == (None, None) for c in texts)
    assert (end["choices"][0]["finish_reason"], end["usage"]) == ("length", None)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 24)


def test_prompts_around_the_window(served: Serving) -> None:
    fits = served.post(prompt=tokens(WINDOW - 1, 9), max_tokens=50)
    assert (fits.json()["usage"]["completion_tokens"], fits.json()["choices"][0]["finish_reason"]) == (1, "length")
    for length in (WINDOW, WINDOW + 1, WINDOW * 3 // 2):
        refused = served.post(prompt=tokens(length, 9))
        assert refused.status_code == 400
        assert f"{length:,} tokens" in refused.json()["error"]["message"]
        assert f"{WINDOW:,}" in refused.json()["error"]["message"]


def test_a_tiny_temperature_is_greedy(served: Serving) -> None:
    assert served.choice(temperature=1e-8) == served.choice()


def test_pages_answer_and_a_stream_goes_on_while_a_prompt_is_read(served: Serving) -> None:
    """Rounds are counted, not seconds: the stream writes between the chunks of the other's read."""
    with served.streaming(), served.asked(prompt=tokens(1000, 10), stream=True):
        assert wait_until(lambda: served.lanes("prefilling"))
        before = sum(served.health().parallel.rounds.values())
        for path in ("/health", "/metrics", "/slots", "/v1/status"):
            assert served.client.get(path).status_code == 200
        assert wait_until(lambda: sum(served.health().parallel.rounds.values()) > before)
        assert served.lanes("prefilling")


def test_a_waiting_stream_is_kept_alive(served: Serving) -> None:
    """Headers come before the slot does, and comments in the silence."""
    with served.streaming(), served.streaming(prompt=tokens(9, 5)), served.asked(stream=True) as third:
        heard = heard_until(third, lambda so_far: so_far.count(b": waiting: all 2 slots are busy\n\n") == 2)
        assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"data:" not in heard


def test_what_is_not_json_and_what_is_too_long_disturb_nobody(served: Serving) -> None:
    bodies: list[tuple[bytes, int, Callable[[str], bool]]] = [
        (b'{"prompt":"x","temperature":NaN}', 400, lambda said: "temperature: must be a finite number" in said),
        (b'{"prompt":"\\ud83d"}', 400, lambda said: "surrogate" in said),
        (b'{"prompt":"' + b"a b" * (1 << 20) + b'"}', 400, lambda said: "at least" in said),
        (b'{"prompt":"' + b"x" * (17 << 20) + b'"}', 413, lambda said: "16,777,216" in said),
    ]
    alone = served.choice(max_tokens=40)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(served.choice, max_tokens=40)
        for body, status, fits in bodies:
            response = served.client.post(COMPLETIONS, content=body)
            assert response.status_code == status
            assert fits(response.json()["error"]["message"])
        assert writing.result() == alone


def data_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
