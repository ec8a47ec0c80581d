"""Requests that no client should send, and many do: `python -m tests.stress.fuzz --seed 1 --requests 20000 [--url U]`.

Sends to every route, beside a neighbour that streams one greedy answer after another. A failure is a 5xx that is not
documented, an error that has not the contract's shape, a whole request that gets no answer, a stream that breaks off, a
neighbour's text that differs from the one it gets alone, and an engine that is not well afterwards. Exits 1 on any. An
engine of its own is started where no `--url` is given; `--first N --requests 1` sends one request again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.stress.fuzz_requests import Sent, request
from tests.stress.real_engine import GIB, RealEngine, running_engine

WORKERS = 4
PATIENCE_S = 30.0
WRITING_S = 4.0
"""How long the fuzz waits for generated text before it leaves, as clients do."""

SETTLE_S = 30.0
SHOWN = 20
DOCUMENTED = {
    501: {"unsupported_route"},
    503: {
        "loading", "draining", "queue_full", "memory_wait_timeout", "bodies_full", "too_many_connections",
        "ledger_unusable", "search_too_long",
    },
}  # fmt: skip
NO_ERROR_BODY = ("/health", "/slots")
"""Routes whose 503 is their answer, not a refusal."""


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    key: str
    token: str

    def connect(self, timeout_s: float) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout_s)


@dataclass
class Reply:
    """What came back. `whole`: the answer ended as its framing says. `left`: the fuzz went away first."""

    status: int = 0
    content_type: str = ""
    body: bytes = b""
    whole: bool = False
    left: bool = False


@dataclass
class Tally:
    """What came of a run."""

    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    neighbour: int = 0
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, reply: Reply) -> None:
        with self._lock:
            self.statuses[reply.status] += 1
            self.left += reply.left

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)
            if len(self.failures) <= SHOWN:
                print(f"FAILED {what}", file=sys.stderr, flush=True)


def exchange(target: Target, sent: Sent) -> Reply:
    """Send one request on a connection of its own, then end the sending side where nothing more is to come."""
    reply = Reply()
    deadline = time.monotonic() + (WRITING_S if sent.generates else PATIENCE_S)
    try:
        with target.connect(PATIENCE_S) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent.data)
                # What is not whole can only be waited for in vain; a whole request's client waits with both sides open.
                if not sent.due:
                    # The server may have closed first, with an answer that lies here.
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
            _read(connection, sent.method, deadline, reply)
    except TimeoutError:
        reply.left = True
    except ConnectionResetError:
        pass
    return reply


def _read(connection: socket.socket, method: str, deadline: float, reply: Reply) -> None:
    got = _Pieces(connection, deadline)
    while True:
        head = got.until(b"\r\n\r\n")
        if head is None or not head.startswith(b"HTTP/"):
            return
        status = int(head.split(b" ", 2)[1])
        if status != 100:
            reply.status = status
            break
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    reply.content_type = fields.get(b"content-type", b"").decode("latin-1")
    if method == "HEAD" or reply.status in (204, 304):
        reply.whole = True
    elif fields.get(b"transfer-encoding") == b"chunked":
        while (size := got.until(b"\r\n")) is not None:
            chunk = got.exactly(int(size, 16) + 2)
            if chunk is None:
                return
            if len(chunk) == 2:
                reply.whole = True
                return
            reply.body += chunk[:-2]
    elif b"content-length" in fields:
        body = got.exactly(int(fields[b"content-length"]))
        reply.whole, reply.body = body is not None, body or b""
    else:
        reply.body = got.rest()
        reply.whole = True


class _Pieces:
    """Reads from a connection until a deadline; TimeoutError after it."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._got = b""

    def _more(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        part = self._connection.recv(1 << 16)
        self._got += part
        return bool(part)

    def until(self, end: bytes) -> bytes | None:
        while end not in self._got:
            if not self._more():
                return None
        found, self._got = self._got.split(end, 1)
        return found

    def exactly(self, size: int) -> bytes | None:
        while len(self._got) < size:
            if not self._more():
                return None
        found, self._got = self._got[:size], self._got[size:]
        return found

    def rest(self) -> bytes:
        while self._more():
            pass
        return self._got


def problem_of(sent: Sent, reply: Reply) -> str | None:
    """What is wrong with the answer; None where nothing is."""
    if reply.left:
        return None if sent.generates or not sent.due else f"no whole answer within {PATIENCE_S:g} s"
    if reply.status == 0:
        return "no answer" if sent.due else None
    if not reply.whole:
        return f"the answer with status {reply.status} broke off"
    if reply.status == 200 and reply.content_type.startswith("text/event-stream"):
        last = reply.body.rstrip().rsplit(b"\n\n", 1)[-1]
        return None if last == b"data: [DONE]" or b'"error"' in last else f"a stream ended with {last[-100:]!r}"
    if reply.status < 400 or sent.method == "HEAD":
        return None if reply.status < 500 or sent.path.startswith(NO_ERROR_BODY) else f"status {reply.status}"
    if reply.status == 503 and sent.path.startswith(NO_ERROR_BODY) and b'"error"' not in reply.body:
        return None
    try:
        error = json.loads(reply.body)["error"]
        code = error["code"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            return f"status {reply.status} with the error {error}"
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status} with no error body: {reply.body[:200]!r}"
    if reply.status >= 500 and code not in DOCUMENTED.get(reply.status, set()):
        return f"status {reply.status}: {error}"
    return None


def run(target: Target, *, seed: int, first: int, requests: int) -> Tally:
    """Send the requests from `WORKERS` threads, beside the neighbour."""
    tally = Tally()
    numbers = iter(range(first, first + requests))
    lock = threading.Lock()
    over = threading.Event()

    def attempt(number: int) -> None:
        sent = request(seed, number, target.key, target.token)
        try:
            reply = exchange(target, sent)
        finally:
            if sent.drains:
                ask(target, "POST", "/admin/resume")
        tally.count(reply)
        if (problem := problem_of(sent, reply)) is not None:
            tally.fail(f"#{number}: {problem}; sent {sent.data[:400]!r}")

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                attempt(number)
            # Also a fault of the fuzz itself must not make the run shorter than it says.
            except Exception as why:  # noqa: BLE001
                tally.fail(f"#{number}: {type(why).__name__}: {why}")
            if (number - first + 1) % 1000 == 0:
                print(f"{number - first + 1} sent, {len(tally.failures)} failed", file=sys.stderr, flush=True)

    alone = neighbour_text(target)
    if alone is None:
        tally.fail("the neighbour got no answer before the run")
        return tally
    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    beside = threading.Thread(target=_stream_beside, args=(target, alone, over, tally))
    for thread in (*threads, beside):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    beside.join()
    _look_after(target, alone, tally)
    return tally


def _stream_beside(target: Target, alone: str, over: threading.Event, tally: Tally) -> None:
    while not over.is_set():
        try:
            text = neighbour_text(target)
        except (OSError, ValueError) as why:
            tally.fail(f"neighbour: {type(why).__name__}: {why}")
            continue
        if text is None:
            over.wait(0.1)
            continue
        tally.neighbour += 1
        if text != alone:
            tally.fail(f"neighbour: {text!r} instead of {alone!r}")


def neighbour_text(target: Target) -> str | None:
    """The neighbour's streamed answer; None where it was refused for want of a place. Raises ValueError where it does
    not end well."""
    body = {"prompt": "The lighthouse keeper wrote:", "max_tokens": 48, "temperature": 0, "stream": True}
    reply = ask(target, "POST", "/v1/completions", body)
    if reply.status in (429, 503):
        return None
    events = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    if reply.status != 200 or not events or events[-1] != b"[DONE]":
        raise ValueError(f"status {reply.status}, it ends with {reply.body[-200:]!r}")
    chunks: list[Any] = [json.loads(event) for event in events[:-1]]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def ask(target: Target, method: str, path: str, body: object = None) -> Reply:
    """A request as a good client sends it."""
    data = b"" if body is None else json.dumps(body).encode()
    secret = target.key if path.startswith("/v1") else target.token
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"Authorization: Bearer {secret}"] if secret else []
    reply = Reply()
    with target.connect(PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        _read(connection, method, time.monotonic() + 4 * PATIENCE_S, reply)
    return reply


def _look_after(target: Target, alone: str, tally: Tally) -> None:
    """The engine once everybody has left: well, idle, its memory accounted for, and its text the same."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        health: Any = json.loads(ask(target, "GET", "/health").body or b"{}")
        idle = bool(health) and health["parallel"]["running"] == 0 and not health["queue"]
        if idle or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if not idle:
        tally.fail(f"afterwards the engine is not idle: {json.dumps(health)[:300]}")
        return
    pool = health["kv_pool"]
    if health["status"] != "ok":
        tally.fail(f"afterwards /health says {health['status']}")
    if not sum(pool["by_slot"]) == sum(pool["by_kind"].values()) == pool["committed_bytes"]:
        tally.fail(f"afterwards the pool's figures disagree: {pool}")
    if (text := neighbour_text(target)) != alone:
        tally.fail(f"afterwards the neighbour gets {text!r} instead of {alone!r}")


@contextmanager
def _target(asked: argparse.Namespace) -> Iterator[tuple[Target, RealEngine | None]]:
    if asked.url is not None:
        parts = urlsplit(asked.url)
        yield Target(parts.hostname or "127.0.0.1", parts.port or 80, asked.key, asked.token), None
        return
    arguments = ["--parallel=3", "--max-len=1024", "--queue-limit=32"]
    with running_engine(arguments=arguments) as engine:
        yield Target("127.0.0.1", engine.port, engine.key, engine.admin), engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first request")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--url", help="an engine that runs; it is drained and resumed now and then")
    parser.add_argument("--key", default="", help="its API key")
    parser.add_argument("--token", default="", help="its admin token")
    asked = parser.parse_args()
    # Bodies of the run are nested up to 2,000 deep.
    sys.setrecursionlimit(20_000)
    began = time.monotonic()
    with _target(asked) as (target, engine):
        tally = run(target, seed=asked.seed, first=asked.first, requests=asked.requests)
        if engine is not None and not engine.alive:
            tally.fail(f"the engine's process ended:\n{engine.log_end()}")
        resident = f", {engine.rss() / GIB:.2f} GiB resident" if engine is not None and engine.alive else ""
    took = time.monotonic() - began
    answers = ", ".join(f"{status or 'none'}: {count}" for status, count in sorted(tally.statuses.items()))
    print(f"seed {asked.seed}, {sum(tally.statuses.values())} requests in {took:.0f} s{resident}")
    print(f"answers by status: {answers}; {tally.left} left before their answer was whole")
    print(f"neighbour: {tally.neighbour} answers beside them")
    for what in itertools.islice(tally.failures, SHOWN):
        print(f"FAILED {what[:700]}")
    print(f"{len(tally.failures)} failures")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
