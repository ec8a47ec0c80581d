"""Bodies that would take memory or the interpreter: long names, numbers, keys, astral characters, endless uploads."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.stress.attacks.harness import Harness, RealEngine, Result

MIB = 1 << 20
LARGE = 15 * MIB
TOGETHER = 6
UNFINISHED = 220
UNFINISHED_BYTES = 31 * MIB // 2
UPLOAD_S = 20.0

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


@dataclass(frozen=True)
class Attack:
    """One body, sent `TOGETHER` times at once, and the status that it should get."""

    name: str
    sent: str
    path: str
    body: Callable[[], bytes]
    status: int = 400


def run(harness: Harness) -> list[Result]:
    results = []
    for attack in ATTACKS:
        with harness.watch(attack.name, attack.sent) as watch:
            body = attack.body()
            answers = list(_together(harness.engine, attack.path, body))
            for status, text in answers:
                watch.expect(status in (attack.status, 503), f"status {status}: {text[:200]!r}")
                watch.expect(len(text) < 4096, f"an answer of {len(text):,} bytes")
            watch.expect(any(status == attack.status for status, _ in answers), f"none got {attack.status}: {answers}")
        results.append(watch.result)
    with harness.watch(
        "unfinished bodies", f"{UNFINISHED} bodies of 15.5 MiB less one byte, as far as they go"
    ) as watch:
        refused, kept, took = _unfinished(harness.engine)
        watch.note(f"{refused} of {UNFINISHED} refused, {kept} not; {took / MIB:.0f} MiB were taken")
        watch.expect(refused > 0, "no unfinished body was refused")
    results.append(watch.result)
    return results


def _together(engine: RealEngine, path: str, body: bytes) -> Iterator[tuple[int, bytes]]:
    answers: list[tuple[int, bytes]] = []

    def send() -> None:
        answer = engine.post(path, body, timeout_s=60.0)
        answers.append((answer.status, answer.body))

    threads = [threading.Thread(target=send) for _ in range(TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield from answers


def _unfinished(engine: RealEngine) -> tuple[int, int, int]:
    """Upload bodies that never end for some seconds; how many were refused and how many not, and the bytes taken."""
    head = engine.head("POST", CHAT, length=UNFINISHED_BYTES)
    piece = b"x" * (1 << 18)
    left: dict[socket.socket, int] = {}
    refused = taken = 0
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(UNFINISHED):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(engine.connect())
                connection.sendall(head + b'{"note":"')
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
                left[connection] = UNFINISHED_BYTES - 10
        deadline = time.monotonic() + UPLOAD_S
        while left and time.monotonic() < deadline:
            for key, events in selector.select(0.5):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    if events & selectors.EVENT_READ:
                        refused += connection.recv(1 << 16).startswith(b"HTTP/1.1 503")
                        raise ConnectionResetError
                    sent = connection.send(piece[: left[connection]])
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(connection)
                    del left[connection]
                    continue
                taken += sent
                left[connection] -= sent
                if not left[connection]:
                    selector.modify(connection, selectors.EVENT_READ)
        return refused, len(left), taken


def _object(**fields: bytes) -> Callable[[], bytes]:
    return lambda: b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items()) + b"}"


def _chat(content: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"' + content + b'"}],"max_tokens":4}'


def _private_use() -> bytes:
    every = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900), *range(0xF0000, 0x10FFFE)]))
    return json.dumps({"messages": [{"role": "user", "content": every}], "max_tokens": 4}, ensure_ascii=False).encode()


def _deep(levels: int) -> bytes:
    return b'{"chat_template_kwargs":{"a":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}," + MESSAGES + b"}"


ATTACKS = [
    Attack("long model", "a `model` of 15 MiB", CHAT, lambda: b'{"model":"' + b"m" * LARGE + b'",' + MESSAGES + b"}"),
    Attack(
        "numbers", "7 million numbers", CHAT, lambda: b'{"note":[' + b"1," * (LARGE // 2) + b"1]," + MESSAGES + b"}"
    ),
    Attack(
        "numbers for an answer",
        "7 million token ids",
        COMPLETIONS,
        lambda: b'{"prompt":[' + b"1," * (LARGE // 2) + b"1]}",
    ),
    Attack(
        "keys",
        "a million keys",
        CHAT,
        lambda: b'{"metadata":{' + b",".join(b'"%07d":1' % i for i in range(LARGE // 14)) + b"}," + MESSAGES + b"}",
    ),
    Attack("objects", "3 million objects", CHAT, lambda: b'{"messages":[' + b"{}," * (LARGE // 3) + b"{}]}"),
    Attack("astral characters", "4 million in a message", CHAT, lambda: _chat("😀".encode() * (LARGE // 4))),
    Attack("escaped characters", "1.3 million in a message", CHAT, lambda: _chat(rb"\ud83d\ude00" * (LARGE // 12))),
    Attack("one astral character", "in 15 MiB of letters", CHAT, lambda: _chat(b"a" * LARGE + "😀".encode())),
    Attack("half a character", "at the end of 15 MiB", CHAT, lambda: _chat(b"a" * LARGE + rb"\ud83d")),
    Attack("every character of private use", "137,000 in a message", CHAT, _private_use),
    Attack("quotes and backslashes", "15 MiB of escapes", CHAT, lambda: _chat(rb"\\\"" * (LARGE // 4))),
    Attack("a long prompt", "15 MiB of words", COMPLETIONS, lambda: b'{"prompt":"' + b"word " * (LARGE // 5) + b'"}'),
    Attack("a long number", "15 MiB of digits", CHAT, _object(temperature=b"0." + b"1" * LARGE)),
    Attack("a deep body", "900 levels of template switches", CHAT, lambda: _deep(900)),
    Attack(
        "a very deep body",
        "7 million levels",
        CHAT,
        lambda: b'{"a":' + b"[" * (LARGE // 2) + b"]" * (LARGE // 2) + b"}",
    ),
    Attack(
        "many messages",
        "300,000 messages",
        CHAT,
        lambda: b'{"messages":[' + b",".join([b'{"role":"user","content":"hi"}'] * 300_000) + b"]}",
    ),
]
