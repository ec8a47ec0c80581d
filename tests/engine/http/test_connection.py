"""Bytes that are no request, or only half of one: answered in the errors' own shape, and the connection closed."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from engine.http.connection import HEAD_LIMIT_BYTES
from engine.request import Done
from tests.engine.http.talk import CHAT, chat_body
from tests.support.scripted_engine import ScriptedEngine, Ticket
from tests.support.served import Served

BODY = json.dumps(chat_body()).encode()
POST = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode()
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def answer(opened: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one answer."""
    with opened.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = dict[str, str]()
        while line := file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers, json.loads(file.read(int(headers["content-length"])))


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /admin/requests?q=two words HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/3.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Client: a\0b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"tls" * 50,
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"me\r\nzz\r\n',
    ],
)
def test_what_is_no_http_is_an_error_like_others(server: Served, engine: ScriptedEngine, sent: bytes) -> None:
    with connected(server) as opened:
        opened.sendall(sent)
        status, headers, body = answer(opened)
        assert (status, headers["content-type"], headers["connection"]) == (400, "application/json", "close")
        assert headers["x-request-id"].startswith("req-")
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "invalid_http")
        assert opened.recv(1) == b""
    assert engine.tickets == []
    assert server.app.streams.count == 0


def test_a_head_over_the_limit(server: Served) -> None:
    with connected(server) as opened:
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: "
        # To the byte, since what is left unread when it closes would take the answer away.
        opened.sendall(head.ljust(HEAD_LIMIT_BYTES + 1, b"a"))
        status, _, body = answer(opened)
    assert (status, body["error"]["code"]) == (431, "head_too_large")
    assert f"{HEAD_LIMIT_BYTES:,}" in body["error"]["message"]


def test_nonsense_behind_a_request_waits_for_its_answer(server: Served, engine: ScriptedEngine) -> None:
    go_on = threading.Event()

    def script(ticket: Ticket) -> None:
        assert go_on.wait(10)
        ticket.put(Done(1, 0, 0))

    engine.script = script
    with connected(server) as opened:
        opened.sendall(WHOLE + b"NONSENSE\r\n\r\n")
        go_on.set()
        assert answer(opened)[0] == 200
        assert opened.recv(1) == b""


@pytest.mark.parametrize(
    "pieces",
    [
        [POST + OFFER + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY],
        [POST + OFFER, b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY[:9], BODY[9:]],
        [POST + OFFER + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)],
    ],
)
def test_an_offer_of_http_2_costs_no_body(server: Served, engine: ScriptedEngine, pieces: list[bytes]) -> None:
    """The same connection serves again, with the offer and without."""
    with connected(server) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent in (pieces, pieces, [WHOLE]):
            for piece in sent:
                opened.sendall(piece)
            assert answer(opened)[0] == 200
    assert len(engine.tickets) == 3
