"""Connections of the console against a server that answers by a script: what is kept, what is sent again, what ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from console.session.api import EngineAction, NotFound, Unreachable, Verb
from console.session.client import EngineClient
from engine.protocol import LogPage
from tests.console.test_client import http

# Only a test that fails waits so long.
LONG_S = 10.0
BODY = b'{"lines":[],"next":7}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
OK = b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + BODY
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + LENGTH + b"\r\n" + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    BODY[:5],
    len(BODY) - 5,
    BODY[5:],
)
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
PATIENT = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
DONE = http("200 OK", b'{"done":true,"message":"ok"}')

Question = Callable[[EngineClient], Awaitable[object]]


@dataclass
class Served:
    url: str
    questions: list[bytes] = field(default_factory=list)


@contextmanager
def serving(*connections: Sequence[bytes]) -> Iterator[Served]:
    """A server that answers one question after another, and ends each connection after the last of its answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LONG_S)
        served = Served(f"http://127.0.0.1:{server.getsockname()[1]}/behind")

        def serve() -> None:
            for answers in connections:
                connection, _ = server.accept()
                connection.settimeout(LONG_S)
                with connection:
                    for answer in answers:
                        served.questions.append(connection.recv(4096))
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield served
        thread.join()


def log(client: EngineClient) -> Awaitable[object]:
    return client.fetch_log(0)


def order(client: EngineClient) -> Awaitable[object]:
    return client.act(EngineAction(Verb.CANCEL, "req-1"))


def ask(url: str, *questions: Question) -> list[object]:
    """What the questions brought, one after another by one client."""

    async def all_of_them() -> list[object]:
        async with asyncio.timeout(LONG_S), EngineClient(url) as client:
            return [await question(client) for question in questions]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("answer", [OK, LAST, CHUNKED, TO_THE_END, PATIENT])
def test_every_framing_is_read_whole(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_METRICS_TOKEN", "t")
    with serving([answer]) as served:
        assert ask(served.url, log) == [LogPage(lines=[], next=7)]
    head, *fields = served.questions[0].decode().split("\r\n")
    assert head == "GET /behind/admin/log?after=0&limit=500 HTTP/1.1"
    assert f"Host: {served.url.split('/')[2]}" in fields
    assert "Authorization: Bearer t" in fields


def test_a_connection_is_kept_and_an_order_gets_its_own() -> None:
    with serving([OK, OK], [DONE]) as served:
        ask(served.url, log, log, order)
    assert served.questions[2].startswith(b"POST /behind/admin/requests/req-1/cancel ")


def test_a_kept_connection_that_ended_is_no_failure() -> None:
    with serving([OK], [LAST], [OK, b""], [OK]) as served:
        ask(served.url, log, log, log, log)
    assert len(served.questions) == 5


def test_an_order_without_an_answer_is_not_sent_again() -> None:
    with serving([OK], [b""]) as served, pytest.raises(Unreachable, match=r"^disconnected without an answer$"):
        ask(served.url, log, order)
    assert [question[:4] for question in served.questions] == [b"GET ", b"POST"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "^disconnected without an answer$"),
        (OK[:10], "^disconnected without an answer$"),
        (OK[:-1], "^disconnected before its answer ended$"),
        (CHUNKED[:-9], "^disconnected before its answer ended$"),
        (b"+OK hello\r\n\r\n", "^it does not speak HTTP"),
        (LAST.replace(LENGTH, b"Content-Length: 9999999\r\n") + b"k" * 5000, "^an answer of more than"),
    ],
)
def test_what_is_no_whole_answer_says_why(answer: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.session.client._MOST_BYTES", 4000)
    with serving([answer]) as served, pytest.raises(Unreachable, match=sentence):
        ask(served.url, log)


def test_no_connection_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(Unreachable, match=r"^cannot connect: Name or service not known$"):
        ask("http://engine.invalid", log)


def test_a_name_with_several_addresses_that_all_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(Unreachable, match=r"^connection refused$"):
        ask(f"http://engine.invalid:{port}", log)


def test_a_token_cannot_add_a_line_and_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_METRICS_TOKEN", "secret\r\nX: b")
    with pytest.raises(Unreachable, match=r"^the token \(.*TANDEM_ADMIN_TOKEN\) is no printable ASCII"):
        ask("http://127.0.0.1:1", log)


def test_an_address_that_only_the_library_refuses_is_said() -> None:
    with pytest.raises(Unreachable, match=r"^no such address: .*999\.1\.1\.1"):
        ask("http://999.1.1.1", log)


def test_a_name_in_the_address_is_shown_to_the_gate_before_an_engine() -> None:
    with serving([OK]) as served:
        ask(served.url.replace("//", "//me:p%40ss@"), log)
    assert b"Authorization: Basic bWU6cEBzcw==" in served.questions[0]
    assert b"me" not in served.questions[0].split(b"Authorization")[0].split(b"Host")[1].split(b"\r\n")[0]


def test_a_token_wins_over_a_name_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_METRICS_TOKEN", "t")
    with serving([OK]) as served:
        ask(served.url.replace("//", "//me:p%40ss@"), log)
    assert served.questions[0].count(b"Authorization") == 1
    assert b"Authorization: Bearer t\r\n" in served.questions[0]


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_dots_stays_in_its_place(name: str) -> None:
    missing = http("404 Not Found", b'{"error":{"message":"none","code":"no_such"}}')
    with serving([missing]) as served, pytest.raises(NotFound, match=r"^none$"):
        ask(served.url, lambda client: client.fetch_request(name))
    place = name.replace(".", "%2E")
    assert served.questions[0].startswith(f"GET /behind/admin/requests/{place} ".encode())


def test_an_engine_that_starts_anew_is_found_again() -> None:
    open_now: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.append(writer)
        while await reader.read(4096):
            writer.write(OK)

    async def started(port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(answer, "127.0.0.1", port)

    async def stopped(server: asyncio.Server) -> None:
        server.close()
        while open_now:
            open_now.pop().close()
        await server.wait_closed()

    async def watched() -> None:
        engine = await started()
        port = engine.sockets[0].getsockname()[1]
        async with asyncio.timeout(LONG_S), EngineClient(f"http://127.0.0.1:{port}") as client:
            await client.fetch_log(0)
            await stopped(engine)
            with pytest.raises(Unreachable, match=r"^connection refused$"):
                await client.fetch_log(0)
            again = await started(port)
            assert (await client.fetch_log(0)).next == 7
            await stopped(again)

    asyncio.run(watched())
