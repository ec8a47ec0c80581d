"""The same question again over one connection: answered as the first time, from the newest snapshot, by a short way."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from engine.http.app import App
from engine.protocol import Health, Status, decode_health
from tests.engine.http.talk import CHAT
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, busy_health
from tests.support.served import Served

POLL = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
COUNTED = 'tandem_http_responses_total{route="/health",status="%d"} '


class Asker:
    """A kept connection and what came over it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
        self.file = self.socket.makefile("rb")

    def ask(self, sent: bytes, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        self.socket.sendall(sent)
        status = int(self.file.readline().split()[1])
        headers = dict[str, str]()
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers, self.file.read(int(headers["content-length"])) if has_body else b""

    def health(self, sent: bytes = POLL) -> Health:
        return decode_health(self.ask(sent)[2])

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def asker(server: Served) -> Iterator[Asker]:
    opened = Asker(server.port)
    yield opened
    opened.close()


def with_line(line: bytes) -> bytes:
    return POLL[:-2] + line + b"\r\n\r\n"


def test_a_poll_shows_the_newest_snapshot(asker: Asker, engine: ScriptedEngine) -> None:
    assert asker.health().parallel.running == 0
    engine.snapshot = busy_health()
    assert asker.health().parallel.running == 2
    engine.snapshot = msgspec.structs.replace(engine.snapshot, status=Status.DRAINING)
    status, headers, body = asker.ask(POLL)
    assert (status, headers["retry-after"], decode_health(body).status) == (503, "2", Status.DRAINING)


def test_polls_go_past_the_application(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, _ = asker.ask(POLL)
    monkeypatch.setattr(App, "__call__", None)
    answers = [asker.ask(POLL) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert all(set(headers) == set(first) for _, headers, _ in answers)
    assert len({headers["x-request-id"] for headers in (first, *(headers for _, headers, _ in answers))}) == 4


def test_polls_are_counted(asker: Asker, client: httpx.Client) -> None:
    def counted() -> float:
        found = [line for line in client.get("/metrics").text.splitlines() if line.startswith(COUNTED % 200)]
        return float(found[0].split()[-1]) if found else 0.0

    before = counted()
    for _ in range(3):
        asker.ask(POLL)
    assert counted() == before + 3


def test_what_a_client_adds_comes_back_each_time(asker: Asker) -> None:
    for _ in range(3):
        assert asker.ask(with_line(b"X-Request-Id: mine"))[1]["x-request-id"] == "mine"
        page = asker.ask(with_line(b"Origin: http://localhost:3000"))[1]
        assert page["access-control-allow-origin"] == "http://localhost:3000"
        assert asker.ask(with_line(b"X-Forwarded-For: 192.0.2.1"))[2] == b""


def test_other_questions_between(asker: Asker) -> None:
    for _ in range(2):
        assert asker.health().status is Status.OK
        assert asker.ask(POLL.replace(b"/health", b"/slots"))[2].startswith(b"[")
        assert asker.ask(POLL.replace(b"GET", b"HEAD"), has_body=False)[0] == 200
        assert asker.ask(POLL.replace(b"/health", b"/nothing"))[0] == 404


def test_a_body_that_looks_like_a_poll_is_a_body(asker: Asker, engine: ScriptedEngine) -> None:
    asker.health()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(POLL)}\r\n\r\n".encode()
    asker.socket.sendall(head)
    assert asker.ask(POLL)[0] == 400
    assert engine.tickets == []


def test_a_poll_in_two_pieces(asker: Asker) -> None:
    for _ in range(2):
        asker.socket.sendall(POLL[:20])
        assert asker.health(POLL[20:]).status is Status.OK


def test_a_connection_that_is_to_close_does(asker: Asker) -> None:
    asker.health()
    assert asker.ask(with_line(b"Connection: close"))[1]["connection"] == "close"
    assert asker.file.read() == b""
