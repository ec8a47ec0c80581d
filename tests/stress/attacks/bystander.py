"""The neighbour of an attack, a process of its own so that the attacker's interpreter holds nothing of it up.

`python -m tests.stress.attacks.bystander CONFIG` (JSON of `Config`) streams one greedy answer after the other, polls
`/health` and looks at the engine's memory, until its input ends; then it finishes its answer and prints `Seen` as JSON.
Its first line is `streaming`, once the first token has come. It calls from an address of its own (127.0.0.2), since a
limit for one address is meant for the attacker's.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ADDRESS = "127.0.0.2"
PATIENCE_S = 60.0
POLL_S = 0.1
LOOK_S = 0.1
FRESH_EVERY = 10
"""One poll of so many is made over a new connection."""


@dataclass(frozen=True)
class Config:
    port: int
    pid: int
    key: str
    token: str
    prompt: str
    max_tokens: int


@dataclass
class Seen:
    """Times in seconds. `texts`: each distinct answer, with how often it came. `lag_s`: the worst oversleep of this
    process itself, which says how much of the other figures is the box's."""

    texts: dict[str, int] = field(default_factory=dict)
    worst_gap_s: float = 0.0
    worst_first_s: float = 0.0
    worst_health_s: float = 0.0
    polls: int = 0
    failures: list[str] = field(default_factory=list)
    refused: int = 0
    peak_rss: int = 0
    lag_s: float = 0.0


class Bystander:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._over = threading.Event()
        self.seen = Seen()

    def run(self) -> Seen:
        threads = [threading.Thread(target=part) for part in (self._stream, self._poll, self._look)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._over.set()
        for thread in threads:
            thread.join()
        return self.seen

    def _fail(self, what: str) -> None:
        if len(self.seen.failures) < 10:
            self.seen.failures.append(what)

    def _connect(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self._config.port), timeout=PATIENCE_S, source_address=(ADDRESS, 0)
        )

    def _stream(self) -> None:
        told = False
        while not self._over.is_set():
            text, complete = "", False
            last = time.monotonic()
            first = True
            try:
                for piece in self._answer():
                    now = time.monotonic()
                    if first:
                        self.seen.worst_first_s = max(self.seen.worst_first_s, now - last)
                    else:
                        self.seen.worst_gap_s = max(self.seen.worst_gap_s, now - last)
                    last, first = now, False
                    if piece is None:
                        complete = True
                        break
                    text += piece
                    if not told:
                        told = True
                        print("streaming", flush=True)
            except (OSError, ValueError, KeyError) as why:
                self._fail(f"stream: {type(why).__name__}: {why} after {time.monotonic() - last:.1f} s of silence")
                self._over.wait(0.2)
                continue
            if complete:
                self.seen.texts[text] = self.seen.texts.get(text, 0) + 1
            elif not first:
                self._fail("stream: it ended before [DONE]")
            else:
                self._over.wait(0.2)

    def _answer(self) -> Iterator[str | None]:
        """The pieces of one answer, None at its end. Nothing where it was refused for want of a place."""
        config = self._config
        body = json.dumps(
            {"prompt": config.prompt, "max_tokens": config.max_tokens, "temperature": 0, "stream": True}
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {config.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with self._connect() as connection:
            connection.sendall(head.encode() + body)
            lines = connection.makefile("rb")
            status = int(lines.readline().split()[1])
            if status in (429, 503):
                self.seen.refused += 1
                return
            if status != 200:
                raise ValueError(f"status {status}: {lines.read(400)!r}")
            for line in lines:
                # The sizes of chunks, the head's lines and the comments in a silence do not begin so.
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    yield None
                    return
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(f"error event: {event['error']}")
                yield event["choices"][0]["text"]

    def _poll(self) -> None:
        question = (
            f"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._config.token}\r\n\r\n"
        ).encode()
        kept: socket.socket | None = None
        while not self._over.wait(POLL_S):
            began = time.monotonic()
            try:
                if kept is None or self.seen.polls % FRESH_EVERY == 0:
                    if kept is not None:
                        kept.close()
                    kept = self._connect()
                kept.sendall(question)
                status = _read_whole(kept)
                if status != 200:
                    self._fail(f"/health: status {status}")
            except OSError as why:
                self._fail(f"/health: {type(why).__name__}: {why}")
                kept = None
            self.seen.polls += 1
            self.seen.worst_health_s = max(self.seen.worst_health_s, time.monotonic() - began)
        if kept is not None:
            kept.close()

    def _look(self) -> None:
        """Memory of the engine and its children, and this process's own lag."""
        page = os.sysconf("SC_PAGE_SIZE")
        while True:
            began = time.monotonic()
            over = self._over.wait(LOOK_S)
            if over:
                return
            self.seen.lag_s = max(self.seen.lag_s, time.monotonic() - began - LOOK_S)
            resident = 0
            for pid in _tree(self._config.pid):
                try:
                    resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
                except (OSError, IndexError):
                    continue
            self.seen.peak_rss = max(self.seen.peak_rss, resident)


def _tree(pid: int) -> Iterator[int]:
    """The process and all below it."""
    yield pid
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        children = {int(word) for task in tasks for word in _children(pid, task)}
    except OSError:
        return
    for child in children:
        yield from _tree(child)


def _children(pid: int, task: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    except OSError:
        return []


def _read_whole(connection: socket.socket) -> int:
    """Take one whole answer; its status."""
    got = b""
    while (head := got.find(b"\r\n\r\n")) < 0:
        got += _received(connection)
    lower = got[:head].lower()
    at = lower.find(b"content-length: ")
    left = head + 4 + int(lower[at + 16 :].split(b"\r\n", 1)[0]) - len(got) if at >= 0 else 0
    while left > 0:
        left -= len(_received(connection))
    return int(got.split(b" ", 2)[1])


def _received(connection: socket.socket) -> bytes:
    if not (part := connection.recv(1 << 16)):
        raise ConnectionError("the engine closed the connection")
    return part


if __name__ == "__main__":
    print(json.dumps(asdict(Bystander(Config(**json.loads(sys.argv[1]))).run())), flush=True)
