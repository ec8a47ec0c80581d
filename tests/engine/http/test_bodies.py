"""Bodies as bytes: what they may hold is known before it becomes objects, and all of them share one memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ServiceConfig
from engine.http import limits
from engine.http.body import HEAVY_BYTES, Bodies, Body
from engine.http.body_scan import measure
from engine.http.wire import ClientGone, Receive
from engine.request import RequestError
from tests.engine.http.talk import CHAT, COMPLETIONS, chat_body, error_of
from tests.engine.http.test_connection import answer
from tests.support.patience import LONG_S
from tests.support.scripted_engine import MAX_LEN, ScriptedEngine, wait_until
from tests.support.served import Served, served

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab\\"{}[],é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a\\"{[,', max_size=4), inner),
    max_leaves=12,
)


def extent_of(value: object) -> tuple[int, int]:
    """Commas and opening brackets outside strings, and one; and the levels."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [extent_of(item) for item in (value.values() if isinstance(value, dict) else value)]
    commas = max(0, len(value) - 1)
    return commas + 1 + sum(n for n, _ in inner), 1 + max((depth for _, depth in inner), default=0)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=JSON, ascii_only=st.booleans(), piece=st.sampled_from([3, 1 << 20]))
def test_the_extent_of_a_body(value: object, ascii_only: bool, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.http.body_scan._CHUNK_BYTES", piece)
        extent = measure(json.dumps(value, ensure_ascii=ascii_only).encode())
    values, depth = extent_of(value)
    assert (extent.values, extent.depth) == (values + 1, depth)


def test_commas_and_brackets_in_texts_are_no_values(client: httpx.Client) -> None:
    """What matters is what would become objects: a long text of code is one string."""
    text = '[{"a", \\' * (MAX_LEN // 16)
    assert client.post(COMPLETIONS, json={"prompt": text, "note": "[,{" * 100_000}).status_code == 200


def test_a_prompt_of_token_ids_that_are_whole_numbers(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.post(COMPLETIONS, json={"prompt": [1.0, 2, 3.0], "max_tokens": 4.0}).status_code == 200
    assert engine.last.prompt == (1, 2, 3)
    assert engine.last.max_tokens == 4


def test_the_last_of_a_name_given_twice_counts(client: httpx.Client, engine: ScriptedEngine) -> None:
    body = b'{"n":"x","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"n":2,"max_tokens":4}'
    assert client.post(CHAT, content=body).status_code == 200
    assert (engine.last.n, engine.last.max_tokens) == (2, 4)


def test_template_switches_reach_the_template(client: httpx.Client, engine: ScriptedEngine) -> None:
    switches = {"enable_thinking": False, "level": 1.0, "deep": {"a": [{"b": None}]}}
    assert client.post(CHAT, json=chat_body(n=1.0, chat_template_kwargs=switches)).status_code == 200
    extra = engine.template.calls[-1]["extra"]
    assert extra == switches
    assert isinstance(extra["level"], float)


def test_texts_that_cannot_fit_are_refused_before_the_template_runs(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    messages = [{"role": "user", "content": "x" * MAX_LEN}] * 3
    refused = error_of(client.post(CHAT, json=chat_body(messages=messages)))
    assert refused["code"] == "context_length_exceeded"
    assert refused["param"] == "messages"
    assert "at least 3,072 tokens" in refused["message"]
    assert engine.template.calls == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
def test_an_encoded_body_is_refused_by_name(client: httpx.Client, engine: ScriptedEngine, encoding: str) -> None:
    body = gzip.compress(json.dumps(chat_body()).encode())
    response = client.post(CHAT, content=body, headers={"content-encoding": encoding})
    assert response.status_code == 415
    assert encoding in error_of(response)["message"]
    assert engine.tickets == []
    assert client.post(CHAT, json=chat_body(), headers={"content-encoding": "identity"}).status_code == 200


ENCODED = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: br\r\n".encode()


def test_a_refused_body_is_read_to_its_end(server: Served) -> None:
    """The refusal reaches a client that still sends, and the connection serves on."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as connection:
        for _ in range(2):
            connection.sendall(ENCODED + b"content-length: 2000000\r\n\r\n")
            assert answer(connection)[0] == 415
            connection.sendall(b"x" * 2_000_000)
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer(connection)[0] == 200
    assert wait_until(lambda: not server.app.connections.discarding)


def test_a_refused_body_that_does_not_end(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.http.connection.DISCARD_S", 0)
    chunk = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as connection:
        connection.sendall(ENCODED + b"transfer-encoding: chunked\r\n\r\n")
        assert answer(connection)[0] == 415
        with pytest.raises(ConnectionError):
            connection.sendall(chunk * 400)


def test_a_refused_body_waits_between_its_pieces(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes as fast as it is read must not keep the loop to itself."""
    monkeypatch.setattr("engine.http.connection.DISCARD_PAUSE_S", 3600)
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as connection:
        connection.sendall(ENCODED + b"content-length: 100000000\r\n\r\nx")
        assert answer(connection)[0] == 415
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(b"x" * (30 << 20))


@pytest.fixture
def roomy(scripted: ScriptedEngine) -> Iterator[Served]:
    """A server whose bodies may each have half of the memory that all may have."""
    with served(scripted, ServiceConfig(body_limit_bytes=limits.BODIES_BYTES // 2 + limits.FREE_BODY_BYTES)) as running:
        yield running


def test_bodies_share_one_budget(roomy: Served) -> None:
    """Unfinished bodies take memory as they arrive, up to the budget; over it only large ones are refused."""
    budget = roomy.app.bodies.budget
    half = limits.BODIES_BYTES // 2 + limits.FREE_BODY_BYTES
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {half}\r\n\r\n".encode()
    holders = [socket.create_connection(("127.0.0.1", roomy.port), timeout=LONG_S) for _ in range(2)]
    with httpx.Client(base_url=roomy.url, timeout=LONG_S) as client:
        for held in holders:
            held.sendall(head + b'{"a":"' + b"x" * (half - 7))
        assert wait_until(lambda: budget.held >= budget.limit - 2)
        refused = client.post(CHAT, json=chat_body(note="x" * (1 << 20)))
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "bodies_full"
        assert f"{budget.limit:,}" in error_of(refused)["message"]
        assert int(refused.headers["retry-after"]) > 0
        assert client.post(CHAT, json=chat_body(note="x" * 1000)).status_code == 200
        chunked = client.post(CHAT, content=(json.dumps(chat_body(note="x" * (1 << 20))).encode() for _ in range(1)))
        assert error_of(chunked)["code"] == "bodies_full", "also where no length was declared"
        for held in holders:
            held.close()
        assert wait_until(lambda: budget.held == 0)
        assert client.post(CHAT, json=chat_body(note="x" * (1 << 20))).status_code == 200
    assert budget.held == 0


def receiving(*parts: bytes) -> Receive:
    messages: list[dict[str, object]] = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1} for i, part in enumerate(parts)
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    return receive


def test_heavy_bodies_are_read_one_at_a_time_and_not_for_nobody() -> None:
    """A heavy body whose client left while it waited for its turn is not read."""

    async def run() -> None:
        bodies = Bodies(1 << 20)
        heavy = [await bodies.receive({"headers": []}, receiving(b"x" * HEAVY_BYTES, b"x")) for _ in range(2)]
        begun, go_on = threading.Event(), threading.Event()

        def held(data: bytearray) -> int:
            begun.set()
            assert go_on.wait(LONG_S)
            return len(data)

        present = True
        first = asyncio.create_task(bodies.read(heavy[0], held, lambda: True))
        second = asyncio.create_task(bodies.read(heavy[1], lambda data: pytest.fail("it was read"), lambda: present))
        assert await asyncio.to_thread(begun.wait, LONG_S)
        present = False
        go_on.set()
        assert await first == HEAVY_BYTES + 1
        with pytest.raises(ClientGone):
            await second
        assert bodies.budget.held == 0

    asyncio.run(run())


def test_what_is_refused_while_it_arrives_gives_its_memory_back() -> None:
    async def run() -> None:
        bodies = Bodies(limits.FREE_BODY_BYTES + 10)
        with pytest.raises(RequestError, match="limit is"):
            await bodies.receive({"headers": []}, receiving(b"x" * (limits.FREE_BODY_BYTES + 5), b"x" * 6, b""))
        assert bodies.budget.held == 0
        body: Body = await bodies.receive({"headers": []}, receiving(b"x" * (limits.FREE_BODY_BYTES + 5)))
        assert bodies.budget.held == 5
        body.release()
        body.release()
        assert bodies.budget.held == 0

    asyncio.run(run())


def test_the_handbook_quotes_the_limits() -> None:
    """The table in docs/operations.md has every limit of `engine/http/limits.py`, in its order."""
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    section = page.split("### Limits of a request\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|", section, re.M)[1:]
    quoted = [int(re.match(r"[\d,]+", row)[0].replace(",", "")) for row in rows]  # type: ignore[index]
    assert quoted == [value for name, value in vars(limits).items() if name.isupper()]
