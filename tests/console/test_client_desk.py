"""What the client asks under `/admin/` of a real HTTP server, and what it makes of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from console.session.api import EngineAction, NotFound, RequestsQuery, Unreachable, Verb
from console.session.client import EngineClient
from tests.console.test_client import answering, closed_port, http
from tests.support import fake_health
from tests.support.fake_health import FakeHealth

__all__ = ["closed_port"]

T = TypeVar("T")
UNKNOWN_ROUTE = http("404 Not Found", b'{"error":{"message":"there is no /x here","code":"unknown_route"}}')


def ask(url: str, question: Callable[[EngineClient], Awaitable[T]]) -> T:
    async def once() -> T:
        async with EngineClient(url) as client:
            return await question(client)

    return asyncio.run(once())


def test_pages_rows_lines_and_actions() -> None:
    async def everything(client: EngineClient) -> None:
        newest = await client.fetch_requests(RequestsQuery(limit=3))
        assert [row.id for row in newest.rows] == ["req-60ef", "req-60ee", "req-60ed"]
        older = await client.fetch_requests(RequestsQuery(before=newest.next, limit=1))
        assert [row.id for row in older.rows] == ["req-60ec"]
        found = await client.fetch_requests(RequestsQuery("日本語", limit=1))
        assert found.total == 48
        assert await client.fetch_request("req-60ec") == older.rows[0]
        log = await client.fetch_log(100, 5)
        assert [line.seq for line in log.lines] == [101, 102, 103, 104, 105]
        assert log.next == 105
        assert (await client.act(EngineAction(Verb.CANCEL, "req-7f3a"))).message == "req-7f3a is cancelled"
        reply = await client.act(EngineAction(Verb.LOAD, "narrator"))
        assert not reply.done
        assert reply.message.startswith("cannot load narrator: ")

    with FakeHealth(fake_health.busy) as server:
        ask(server.url, everything)


def test_a_target_cannot_leave_its_place_in_the_path() -> None:
    with FakeHealth(fake_health.busy) as server:
        with pytest.raises(NotFound, match=r"no request '\.\./log\?x=/1' in the ledger"):
            ask(server.url, lambda client: client.fetch_request("../log?x=/1"))
        reply = ask(server.url, lambda client: client.act(EngineAction(Verb.UNLOAD, "a/b?c")))
        assert reply.message == "no role 'a/b?c'"


def test_orders_carry_the_admin_token_and_a_refusal_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_METRICS_TOKEN", "narrow")
    monkeypatch.delenv("TANDEM_ADMIN_TOKEN", raising=False)
    with FakeHealth(fake_health.busy) as server:
        server.admin.token = "wide"
        refused = ask(server.url, lambda client: client.act(EngineAction(Verb.CANCEL, "req-7f3a")))
        assert not refused.done
        assert refused.message.endswith("set TANDEM_ADMIN_TOKEN to the engine's admin token")
        assert server.admin.acted == []
        monkeypatch.setenv("TANDEM_ADMIN_TOKEN", "wide")
        assert ask(server.url, lambda client: client.act(EngineAction(Verb.CANCEL, "req-7f3a"))).done
        ask(server.url, lambda client: client.fetch_log(0))
        assert server.asked_with == ["Bearer narrow"]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (lambda client: client.fetch_requests(RequestsQuery()), "this engine has no ledger"),
        (lambda client: client.fetch_request("x"), "this engine has no ledger"),
        (lambda client: client.fetch_log(0), "this engine keeps no log to show"),
    ],
)
def test_an_older_engine_lacks_it(question: Callable[[EngineClient], Awaitable[object]], sentence: str) -> None:
    with answering(UNKNOWN_ROUTE) as url, pytest.raises(NotFound, match=f"^{sentence}$"):
        ask(url, question)


def test_an_older_engine_takes_no_actions() -> None:
    with answering(UNKNOWN_ROUTE) as url:
        assert (
            ask(url, lambda client: client.act(EngineAction(Verb.LOAD, "x"))).message == "this engine takes no actions"
        )


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http("200 OK", b'{"rows": 3}'), "an answer of another shape"),
        (http("500 Internal Server Error", b"oops"), "^status 500$"),
        (http("403 Forbidden", b'{"error":{"message":"not for you"}}'), "^not for you; .*TANDEM_METRICS_TOKEN$"),
        (b"", "disconnected"),
    ],
)
def test_what_is_no_page_is_said(answer: bytes, sentence: str) -> None:
    with answering(answer) as url, pytest.raises(Unreachable, match=sentence):
        ask(url, lambda client: client.fetch_requests(RequestsQuery()))


def test_nothing_there(closed_port: str) -> None:
    with pytest.raises(Unreachable, match=r"^connection refused$"):
        ask(closed_port, lambda client: client.act(EngineAction(Verb.LOAD, "x")))
