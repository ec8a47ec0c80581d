"""Polls one address from several threads, as so many consoles would: `python -m tests.stress.poll URL THREADS HZ`.

Reads `on` and `off` from its input; answers each with the number of answers it had since the last word.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from urllib.parse import urlsplit


def main() -> None:
    url, threads, hz = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    on = threading.Event()
    counts = [0] * threads

    def poll(number: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        while True:
            on.wait()
            started = time.monotonic()
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            answer.read()
            counts[number] += answer.status == 200
            time.sleep(max(0.0, 1 / hz - (time.monotonic() - started)))

    for number in range(threads):
        threading.Thread(target=poll, args=(number,), daemon=True).start()
    before = 0
    for word in sys.stdin:
        (on.set if word.strip() == "on" else on.clear)()
        now = sum(counts)
        print(now - before, flush=True)
        before = now


if __name__ == "__main__":
    main()
