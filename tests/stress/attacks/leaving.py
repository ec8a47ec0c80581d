"""Clients that leave: in every phase of a request, without a word or with a reset."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

from tests.stress.attacks.harness import Harness, RealEngine, Result

ROUNDS = 10
LONG = "A sentence that the model has to read before it can write. " * 60


def run(harness: Harness) -> list[Result]:
    engine = harness.engine
    with harness.watch(
        "clients leave in every phase", f"{ROUNDS * len(PHASES)} requests, half end in a reset"
    ) as watch:
        for number in range(ROUNDS):
            for name, leave in PHASES.items():
                with engine.connect() as connection:
                    leave(engine, connection)
                    if number % 2:
                        # Closed with nothing to linger for, a socket sends a reset instead of an end.
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                watch.expect(engine.alive, f"the engine ended after: {name}")
    return [watch.result]


def _in_head(engine: RealEngine, connection: socket.socket) -> None:
    connection.sendall(engine.head("POST", "/v1/completions", length=100)[:40])


def _in_body(engine: RealEngine, connection: socket.socket) -> None:
    connection.sendall(engine.head("POST", "/v1/completions", length=100_000) + b'{"prompt": "abc')


def _at_once(engine: RealEngine, connection: socket.socket) -> None:
    _send(engine, connection, "Hello", stream=True)


def _while_reading(engine: RealEngine, connection: socket.socket) -> None:
    _send(engine, connection, LONG, stream=True)
    connection.recv(200)


def _while_writing(engine: RealEngine, connection: socket.socket) -> None:
    _send(engine, connection, "Hello", stream=True)
    got = b""
    while got.count(b"data: ") < 5 and (part := connection.recv(4096)):
        got += part


def _whole_answer(engine: RealEngine, connection: socket.socket) -> None:
    _send(engine, connection, "Hello", stream=False)


PHASES: dict[str, Callable[[RealEngine, socket.socket], None]] = {
    "in the head": _in_head,
    "in the body": _in_body,
    "right after the body": _at_once,
    "while the prompt is read": _while_reading,
    "while the answer is written": _while_writing,
    "before an answer that is not streamed": _whole_answer,
}


def _send(engine: RealEngine, connection: socket.socket, prompt: str, *, stream: bool) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 400, "temperature": 0, "stream": stream}).encode()
    connection.sendall(engine.head("POST", "/v1/completions", length=len(body)) + body)
