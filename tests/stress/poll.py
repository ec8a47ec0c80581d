"""Polls one address from several threads, as so many consoles would: `python -m tests.stress.poll URL THREADS HZ`.

Each over a kept connection of its own, with the least that reads whole answers: no HTTP library. Reads `on` and `off`
from its input; answers each with how many answers it had since the last word and the processor time of the process
since then, in seconds.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from urllib.parse import urlsplit

LENGTH = b"content-length: "


def main() -> None:
    url, threads, hz = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    on = threading.Event()
    counts = [0] * threads
    parts = urlsplit(url)
    assert parts.hostname is not None
    question = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
    place = (parts.hostname, parts.port or 80)

    def poll(number: int) -> None:
        connection = socket.create_connection(place, timeout=10)
        while True:
            on.wait()
            started = time.monotonic()
            connection.sendall(question)
            counts[number] += read(connection)
            time.sleep(max(0.0, 1 / hz - (time.monotonic() - started)))

    for number in range(threads):
        threading.Thread(target=poll, args=(number,), daemon=True).start()
    before, used = 0, 0.0
    for word in sys.stdin:
        (on.set if word.strip() == "on" else on.clear)()
        now, taken = sum(counts), time.process_time()
        print(now - before, taken - used, flush=True)
        before, used = now, taken


def read(connection: socket.socket) -> bool:
    """Take one whole answer; whether its status is 200."""
    got = b""
    while (head := got.find(b"\r\n\r\n")) < 0:
        got += received(connection)
    at = got.index(LENGTH) + len(LENGTH)
    left = head + 4 + int(got[at : got.index(b"\r", at)]) - len(got)
    while left > 0:
        left -= len(received(connection))
    return got.startswith(b"HTTP/1.1 200 ")


def received(connection: socket.socket) -> bytes:
    if not (part := connection.recv(1 << 16)):
        raise ConnectionError("the engine closed the connection")
    return part


if __name__ == "__main__":
    main()
