"""Clients that hold connections: caps, who makes way, time limits, half-closed clients and those of HTTP/1.0."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config import ServiceConfig
from engine.http import server as server_module
from engine.http.connection_table import BYTES_A_SECOND, Closed, ConnectionLimits, ConnectionTable, Wait
from engine.process.descriptors import MOST_CONNECTIONS, RESERVE, connections_within, soft_limit
from engine.process.ledger.reader import LedgerReader
from engine.process.owner_socket import owner_socket
from engine.request import Admitted, Text
from tests.engine.http.talk import CHAT, chat_body
from tests.engine.http.test_connection import answer
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket
from tests.support.served import Served, served

CAP = 6
SERVICE = ServiceConfig(connections=CAP, head_timeout_s=20, stall_timeout_s=30)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps(chat_body()).encode()
STREAMED = json.dumps(chat_body(stream=True)).encode()
POST = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n".encode()
HEAD_OF_A_BODY = POST + b"Content-Length: 1000\r\n\r\n"


@dataclass
class House:
    """A server with `CAP` connections, whose clock a test moves on, and the folder of its owner's socket."""

    server: Served
    folder: str
    engine: ScriptedEngine
    ahead: list[float] = field(default_factory=lambda: [0.0])

    @property
    def table(self) -> ConnectionTable:
        return self.server.app.connections

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=LONG_S)

    def asked(self) -> socket.socket:
        """A connection that was answered once and is kept."""
        opened = self.connect()
        opened.sendall(HEALTH)
        assert answer(opened)[0] == 200
        return opened

    def later(self, seconds: float) -> None:
        self.ahead[0] += seconds


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(server_module, "TICKS_A_SWEEP", 1)
    engine = ScriptedEngine()
    with owner_socket(tmp_path) as owner, served(engine, SERVICE, owner) as running:
        made = House(running, str(tmp_path / "engine.sock"), engine)
        running.app.connections.clock = lambda: time.monotonic() + made.ahead[0]
        yield made


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def closed(opened: socket.socket) -> bool:
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


def test_at_the_cap_those_that_have_not_asked_make_way_and_a_kept_connection_stays(house: House) -> None:
    with ExitStack() as stack:
        kept = stack.enter_context(house.asked())
        idle = [stack.enter_context(house.connect()) for _ in range(CAP)]
        until(lambda: house.table.closed[Closed.EVICTED] == 1)
        assert closed(idle[0])
        for _ in range(2 * CAP):
            stack.enter_context(house.asked())
        assert house.table.open == CAP
        assert house.table.closed[Closed.REFUSED] == 0
        # The oldest of those that wait for a next request goes too, once no other kind is left.
        assert all(map(closed, [*idle, kept]))


def test_where_all_are_being_answered_one_more_is_refused_but_the_owner_is_not(house: House) -> None:
    go_on = threading.Event()

    def script(ticket: Ticket) -> None:
        assert go_on.wait(LONG_S)
        ticket.finish("Hello")

    house.engine.script = script
    with ExitStack() as stack:
        busy = [stack.enter_context(house.connect()) for _ in range(CAP)]
        for opened in busy:
            opened.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        until(lambda: len(house.engine.tickets) == CAP)
        status, headers, body = answer(stack.enter_context(house.connect()))
        assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert body["error"]["code"] == "too_many_connections"
        owner = stack.enter_context(socket.socket(socket.AF_UNIX))
        owner.connect(house.folder)
        owner.sendall(HEALTH)
        assert answer(owner)[0] == 200
        go_on.set()
        assert [answer(opened)[0] for opened in busy] == [200] * CAP
    assert house.table.closed[Closed.EVICTED] == 0


@pytest.mark.parametrize("trickle", [True, False])
def test_a_head_that_does_not_end_is_refused_however_its_bytes_trickle(house: House, trickle: bool) -> None:
    with house.connect() as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        until(lambda: house.table.open == 1)
        if trickle:
            house.later(19)
            opened.sendall(b"X-More: 1\r\n")
            house.later(2)
        else:
            house.later(21)
        status, headers, body = answer(opened)
        assert (status, headers["connection"], body["error"]["code"]) == (408, "close", "head_timeout")
        assert "TANDEM_HEAD_TIMEOUT" in body["error"]["message"]
        assert closed(opened)
    assert house.table.closed[Closed.SLOW_HEAD] == 1


def test_a_connection_that_never_asks_is_closed_without_a_word(house: House) -> None:
    with house.connect() as silent, house.connect() as blank, house.asked() as kept:
        blank.sendall(b"\r\n\r\n")
        until(lambda: house.table.open == 3)
        house.later(21)
        assert closed(silent)
        assert closed(blank)
        kept.sendall(HEALTH)
        assert answer(kept)[0] == 200


def test_a_body_that_does_not_come_is_refused_and_its_request_let_go(house: House) -> None:
    with house.connect() as opened:
        opened.sendall(HEAD_OF_A_BODY + b"{")
        until(lambda: [member.waits_for() for member in house.table._groups] == [Wait.BODY])
        house.later(31)
        status, _, body = answer(opened)
        assert (status, body["error"]["code"]) == (408, "body_timeout")
        assert "TANDEM_STALL_TIMEOUT" in body["error"]["message"]
        assert closed(opened)
    assert (house.engine.tickets, house.server.app.streams.count) == ([], 0)
    assert house.table.closed[Closed.SLOW_BODY] == 1


def test_a_client_that_does_not_read_its_answer_is_let_go_with_its_request(house: House) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 100))
        # More than the buffers of both ends hold.
        ticket.put(Text(0, "x" * (8 << 20), 1))

    house.engine.script = script
    with house.connect() as opened, house.asked() as neighbour:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(STREAMED) + STREAMED)

        def ended() -> bool:
            # The first look at unread bytes begins the time, a later one ends it.
            house.later(31)
            return house.table.closed[Closed.SLOW_READER] == 1

        until(lambda: bool(house.engine.tickets))
        until(ended)
        until(lambda: house.table.open == 1)
        assert house.engine.tickets[0].cancelled.wait(LONG_S)
        neighbour.sendall(HEALTH)
        assert answer(neighbour)[0] == 200


def test_a_client_that_closed_its_sending_side_gets_what_is_answered_at_once(house: House, tmp_path: Path) -> None:
    searching, go_on = threading.Event(), threading.Event()

    class Held(LedgerReader):
        def find(self, request_id: str) -> None:
            searching.set()
            assert go_on.wait(LONG_S)

    house.engine.ledger = Held(tmp_path / "ledger.sqlite")
    with house.connect() as opened:
        opened.sendall(b"GET /admin/requests/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert searching.wait(LONG_S)
        opened.shutdown(socket.SHUT_WR)
        # Whoever asks after that is heard after that.
        for _ in range(2):
            house.asked().close()
        go_on.set()
        status, headers, body = answer(opened)
        assert (status, headers["connection"], body["error"]["code"]) == (404, "close", "not_found")
        assert closed(opened)


def test_generated_text_is_not_made_for_a_client_that_closed_its_sending_side(house: House) -> None:
    house.engine.script = lambda ticket: ticket.put(Admitted(0, 0, 100))
    with house.connect() as opened:
        opened.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        until(lambda: bool(house.engine.tickets))
        opened.shutdown(socket.SHUT_WR)
        assert house.engine.tickets[0].cancelled.wait(LONG_S)


@pytest.mark.parametrize("stream", [True, False])
def test_an_http_1_0_client_gets_no_chunks_and_the_end_of_the_connection(house: House, stream: bool) -> None:
    sent = json.dumps(chat_body(stream=stream)).encode()
    with house.connect() as opened:
        opened.sendall(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
        with opened.makefile("rb") as file:
            head, _, body = file.read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if stream:
        assert body.startswith(b"data: {")
        assert body.endswith(b"\n\ndata: [DONE]\n\n")
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello world"


@dataclass(eq=False)
class FakeMember:
    since: float
    wait: Wait | None = Wait.FIRST_REQUEST
    went: bool = False

    def waits_for(self) -> Wait | None:
        return self.wait

    def evict(self) -> None:
        self.went = True

    def check(self, now: float) -> None:
        return


def table(connections: int, per_address: int) -> ConnectionTable:
    return ConnectionTable(ConnectionLimits(connections, per_address, 20, 30))


def test_one_address_of_another_machine_has_a_share_and_64_bits_of_ipv6_are_one() -> None:
    full = table(8, 2)
    first, second, third = (FakeMember(float(i)) for i in range(3))
    assert full.enter(first, "2001:db8::1")
    assert full.enter(second, "2001:db8::2")
    assert full.enter(third, "2001:db8::3")
    assert [member.went for member in (first, second, third)] == [True, False, False]
    for member in (second, third):
        member.wait = None
    assert not full.enter(FakeMember(3), "2001:db8::4")
    assert full.enter(FakeMember(4), "2001:db8:0:1::1")
    for i in range(5):
        assert full.enter(FakeMember(i, None), "127.0.0.1")
    assert full.open == 8
    full.leave(second)
    assert full.enter(FakeMember(5), "2001:db8::5")


def test_who_makes_way_is_the_kind_that_loses_least_then_the_longest_wait() -> None:
    waits = [Wait.BODY, Wait.NEXT_REQUEST, None, Wait.FIRST_REQUEST, Wait.NEXT_REQUEST, Wait.FIRST_REQUEST]
    members = [FakeMember(float(-i), wait) for i, wait in enumerate(waits)]
    full = table(len(members), 1)
    for member in members:
        assert full.enter(member, "127.0.0.1")
    order = []
    for _ in range(5):
        assert full.enter(FakeMember(0, None), "127.0.0.1")
        order += [i for i, member in enumerate(members) if member.went and i not in order]
    assert order == [5, 3, 4, 1, 0]
    assert not full.enter(FakeMember(0, None), "127.0.0.1")
    assert (full.closed[Closed.EVICTED], full.closed[Closed.REFUSED]) == (5, 1)


def test_bytes_that_move_extend_the_time_in_proportion() -> None:
    limits = ConnectionLimits(1, 1, 20, 30)
    assert not limits.stalled(30, 0)
    assert limits.stalled(31, 100)
    assert not limits.stalled(90, 60 * BYTES_A_SECOND)
    assert limits.stalled(91, 60 * BYTES_A_SECOND)


def test_connections_leave_descriptors_for_everything_else() -> None:
    assert connections_within(1024) == 1024 - RESERVE
    assert connections_within(256) == 128
    assert connections_within(1 << 20) == MOST_CONNECTIONS
    asked = ServiceConfig(connections=1 << 16, connections_per_address=1 << 16)
    limits = ConnectionLimits.of(asked)
    assert limits.connections == limits.per_address == connections_within(soft_limit())
    assert ConnectionLimits.of(ServiceConfig()).per_address == limits.connections // 4


def test_the_soft_limit_of_descriptors_is_raised() -> None:
    """In a process of its own: a limit that was lowered for it alone."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900))
from engine.process.descriptors import raise_limit, soft_limit
raise_limit()
print(soft_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["900", "900", "900"]


def test_a_server_without_a_free_descriptor_turns_clients_away_and_takes_them_again() -> None:
    """In a process of its own, whose limit falls below what its caps were made for."""
    code = """
import os, resource, sys
from engine.config import ServiceConfig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import served
with served(ScriptedEngine(), ServiceConfig()) as running:
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4,) * 2)
    print(running.port, flush=True)
    sys.stdin.read()
"""
    with ExitStack() as stack:
        child = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert child.stdin is not None
        stack.enter_context(child.stdin)
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with ExitStack() as flood:
            made = [flood.enter_context(socket.create_connection(("127.0.0.1", port), LONG_S)) for _ in range(20)]
            # The newest have no descriptor left for them.
            assert closed(made[-1])
            made[0].sendall(HEALTH)
            assert answer(made[0])[0] == 200

        def taken() -> bool:
            with socket.create_connection(("127.0.0.1", port), LONG_S) as opened:
                opened.sendall(HEALTH)
                try:
                    return opened.recv(12) == b"HTTP/1.1 200"
                except ConnectionResetError:
                    return False

        until(taken)
