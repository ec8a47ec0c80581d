"""The client's sentences and the one-frame print, against a real HTTP server."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from console.main import Options, Printed, run
from console.once import print_once
from console.session.api import EngineAction, Verb
from console.session.client import EngineClient, Unreachable
from engine.config import ServiceConfig
from engine.process.owner_socket import owner_socket
from engine.protocol import Health, Status
from tests.support import fake_health
from tests.support.fake_health import FakeHealth
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import served


def fetch(url: str) -> Health:
    async def once() -> Health:
        async with EngineClient(url) as client:
            return await client.fetch()

    return asyncio.run(once())


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that gives one fixed answer, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(body)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.fixture
def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_snapshot_counts_whatever_its_status_code() -> None:
    with FakeHealth(fake_health.loading) as server:
        assert fetch(server.url + "/").status is Status.LOADING


def test_a_proxy_of_the_environment_is_not_asked(closed_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, closed_port)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with FakeHealth(fake_health.loading) as server:
        assert fetch(server.url).status is Status.LOADING


@pytest.mark.parametrize(
    ("set_tokens", "sent"),
    [
        ({}, None),
        ({"ADMIN": "wide"}, "Bearer wide"),
        ({"ADMIN": "wide", "METRICS": "narrow"}, "Bearer narrow"),
        ({"METRICS": ""}, None),
    ],
)
def test_the_token_that_opens_less_is_sent(
    set_tokens: dict[str, str], sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ADMIN", "METRICS"):
        monkeypatch.delenv(f"TANDEM_{name}_TOKEN", raising=False)
    for name, token in set_tokens.items():
        monkeypatch.setenv(f"TANDEM_{name}_TOKEN", token)
    with FakeHealth(fake_health.idle) as server:
        fetch(server.url)
        assert server.asked_with == [sent]


def test_an_engine_of_this_user_is_asked_through_its_socket(closed_port: str, tmp_path: Path) -> None:
    """The first question, those after it, and an order; its port is not needed."""

    async def ask_all(path: str) -> tuple[int, bool]:
        async with EngineClient(closed_port, socket_path=path) as client:
            bodies = [await client.fetch_with_body() for _ in range(3)]
            reply = await client.act(EngineAction(Verb.DRAIN, ""))
            return len(bodies), reply.done

    with owner_socket(tmp_path) as owner, served(ScriptedEngine(), ServiceConfig(), owner):
        assert owner is not None
        assert asyncio.run(ask_all(str(owner.path))) == (3, True)
    with pytest.raises(Unreachable, match="connection refused"):
        asyncio.run(ask_all(str(owner.path)))


def test_nothing_there(closed_port: str) -> None:
    with pytest.raises(Unreachable, match=r"^connection refused$"):
        fetch(closed_port)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http("404 Not Found", b"{}"), "status 404, not a tandem-health-1 body"),
        (http("200 OK", b"<html>"), "status 200, not a tandem-health-1 body"),
        (http("401 Unauthorized", b""), "status 401: the rest wants a token"),
        (http("200 OK", b""), "status 200: the rest wants a token"),
        (http("200 OK", b'{"status":"ok"}'), "it says only “ok”: the rest wants a token"),
        (b"", "disconnected"),
    ],
)
def test_what_is_no_snapshot_is_said(answer: bytes, sentence: str) -> None:
    with answering(answer) as url, pytest.raises(Unreachable, match=sentence):
        fetch(url)


def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.session.client._MOST_BYTES", 100)
    with answering(http("200 OK", b"x" * 200)) as url, pytest.raises(Unreachable, match=r"^an answer of more than"):
        fetch(url)


def test_the_whole_answer_must_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.session.client._SNAPSHOT_S", 0.2)
    given_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(http("200 OK", b" " * 100_000)[:-100_000])
                while not given_up.wait(0.01):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(Unreachable, match=r"^no answer within 0 s$"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}")
        given_up.set()
        thread.join()


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://[::1", "ftp://x"])
def test_an_address_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Options((url,))) == run(Options((url,)), Printed.FRAME) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"tandem console: --url {url}: ") for line in lines)


def test_once_prints_a_frame_without_escapes_into_a_pipe() -> None:
    out = io.StringIO()
    with FakeHealth(fake_health.waiting) as server:
        assert print_once(server.url, out) == 0
    text = out.getvalue()
    assert "\x1b" not in text
    assert "◔ 2 waiting" in text
    assert re.search(r"waits for a slot: all 4 slots are busy", text)


def test_once_exits_three_when_nothing_answers(closed_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Options((closed_port,)), Printed.FRAME) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"tandem console: nothing to show at {closed_port}: connection refused\n"
