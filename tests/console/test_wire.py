"""Connections of the console against a server that answers by a script: what is kept, what is sent again, what ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from console.wire import Wire, WireError

# Only a test that fails waits so long.
LONG_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nok"
PATIENT = b"HTTP/1.1 100 Continue\r\n\r\n" + OK


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


def ask(url: str, *methods: str, most: int = 1 << 20) -> list[bytes]:
    """What the questions brought, one after another over one wire."""

    async def all_of_them() -> list[bytes]:
        wire = Wire(url)
        try:
            async with asyncio.timeout(LONG_S):
                token = {"Authorization": "Bearer t"}
                return [(await wire.ask(method, "/path", token, most)).content for method in methods]
        finally:
            wire.close()

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("answer", [OK, LAST, CHUNKED, TO_THE_END, PATIENT])
def test_every_framing_is_read_whole(answer: bytes) -> None:
    with serving([answer]) as served:
        assert ask(served.url, "GET") == [b"ok"]
    head, *fields = served.questions[0].decode().split("\r\n")
    assert head == "GET /behind/path HTTP/1.1"
    assert f"Host: {served.url.split('/')[2]}" in fields
    assert "Authorization: Bearer t" in fields


def test_a_connection_is_kept_and_an_order_gets_its_own() -> None:
    with serving([OK, OK], [LAST]) as served:
        assert ask(served.url, "GET", "GET", "POST") == [b"ok"] * 3
    assert served.questions[2].startswith(b"POST /behind/path ")


def test_a_kept_connection_that_ended_is_no_failure() -> None:
    with serving([OK], [LAST], [OK, b""], [OK]) as served:
        assert ask(served.url, "GET", "GET", "GET", "GET") == [b"ok"] * 4


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "disconnected without an answer"),
        (OK[:-1], "disconnected before its answer ended"),
        (b"SSH-2.0-OpenSSH\r\n", "it does not speak HTTP"),
        (OK.replace(b" 2", b" 9999999") + b"k" * 5000, "an answer of more than"),
    ],
)
def test_what_is_no_whole_answer_says_why(answer: bytes, sentence: str) -> None:
    with serving([answer]) as served, pytest.raises(WireError, match=sentence):
        ask(served.url, "GET", most=4000)


def test_a_token_cannot_add_a_line() -> None:
    async def once() -> None:
        await Wire("http://127.0.0.1:1").ask("GET", "/", {"Authorization": "Bearer a\r\nX: b"}, 1)

    with pytest.raises(WireError, match=r"TANDEM_ADMIN_TOKEN\) is no printable ASCII"):
        asyncio.run(once())


def test_a_name_in_the_address_is_shown_to_the_gate_before_an_engine() -> None:
    with serving([OK]) as served:
        url = served.url.replace("//", "//me:p%40ss@")
        asyncio.run(Wire(url).ask("GET", "/", {}, 4000))
    assert b"Authorization: Basic bWU6cEBzcw==" in served.questions[0]
    assert b"me" not in served.questions[0].split(b"Authorization")[0].split(b"Host")[1].split(b"\r\n")[0]
