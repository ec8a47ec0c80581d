"""What a streamed chunk costs the server: `python -m tests.stress.stream_rate STREAMS ROUNDS_PER_S ROUNDS`.

A scripted engine writes one piece to every stream each round, as a decode round does; the clients are a process of
their own. Prints the processor time per chunk of the event loop's thread and of the engine's, and the wake-ups per
round. Time is charged by the kernel with its own share of sockets and wake-ups, so compare runs on one quiet box only.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from engine.config import ServiceConfig
from engine.request import Admitted, Done, Finished, FinishReason, Text
from tests.support.scripted_engine import ScriptedEngine, Ticket, wait_until
from tests.support.served import served

_CLIENTS = """
import socket, sys, threading
BODY = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY)
def read():
    opened = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    opened.sendall(HEAD + BODY)
    while b"[DONE]" not in opened.recv(65536):
        pass
threads = [threading.Thread(target=read) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
"""


def main() -> None:
    streams, rate, rounds = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    tickets: list[Ticket] = []

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, rounds))
        tickets.append(ticket)

    with served(ScriptedEngine(script), ServiceConfig()) as server:
        clients = subprocess.Popen([sys.executable, "-c", _CLIENTS, str(server.port), str(streams)])
        assert wait_until(lambda: len(tickets) == streams)
        room = server.app.streams.room()
        loop_clock = time.pthread_getcpuclockid(_loop_thread().ident or 0)
        loop_before, own_before, rung_before = time.clock_gettime(loop_clock), time.thread_time(), room.wakeups
        due = time.monotonic()
        for _ in range(rounds):
            for ticket in tickets:
                ticket.put(Text(0, " word", 1))
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        loop_s = time.clock_gettime(loop_clock) - loop_before
        own_s, rung = time.thread_time() - own_before, room.wakeups - rung_before
        for ticket in tickets:
            ticket.put(Finished(0, FinishReason.LENGTH, rounds), Done(1, 0, rounds))
        clients.wait(20)
    chunks = streams * rounds
    print(
        f"{streams} streams, {rate:g} rounds/s, {chunks} chunks: event loop {1e6 * loop_s / chunks:.0f} us a chunk, "
        f"engine thread {1e6 * own_s / chunks:.0f} us a chunk, {rung / rounds:.2f} wake-ups a round"
    )


def _loop_thread() -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == "served")


if __name__ == "__main__":
    main()
