"""Figures of one real engine that a suite must not assert: `python -m tests.stress.measure WORD`.

slots    what idle slots cost one request: engines of one and of four slots side by side, alternating pairs
pollers  what being watched costs serving: /health asked by three at 4 Hz, and by none, alternating
consoles the same of three consoles on terminals of their own, on the engine's box
health   latency of /health while three slots decode and a fourth reads a long prompt
start    from `tandem serve` to ready, the model being in the cache
console  the console on a terminal: first frame, a change to the screen, its share of a core; no engine needed
"""

from __future__ import annotations

import os
import random
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import httpx

from tandem.service.own_engine import engine_for
from tandem.settings.origins import NO_FLAGS
from tests.stress.console import console, opened

PAIRS = 10
TOKENS = 192
POLLERS = 3
POLL_HZ = 4
WINDOW_S = 0.75
WINDOW_FOURS = 100
CONSOLE_FOURS = 40
SETTLE_S = 0.1
CHAPTER = 1500
PROBES = 1500
STORY = "Write a long story about a lighthouse keeper and the sea."


def complete(client: httpx.Client, url: str, prompt: str, tokens: int) -> float:
    """Seconds that one greedy answer of exactly `tokens` tokens takes."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    started = time.perf_counter()
    answer = client.post(f"{url}/v1/chat/completions", json=body)
    answer.raise_for_status()
    return time.perf_counter() - started


def slots() -> None:
    """Prints each pair's ratio (rate with four slots over rate with one), their median and its 95 % interval."""
    with (
        engine_for(None, NO_FLAGS, slots=1, own=True) as one,
        engine_for(None, NO_FLAGS, slots=4, own=True) as four,
        httpx.Client(timeout=300) as client,
    ):
        for address in (one, four):
            complete(client, address.url, STORY, TOKENS)
        ratios = []
        for pair in range(PAIRS):
            order = (one, four) if pair % 2 == 0 else (four, one)
            prompt = f"{STORY} Chapter {pair}."
            took = {address: complete(client, address.url, prompt, TOKENS) for address in order}
            ratios.append(took[one] / took[four])
    print("pairs", " ".join(f"{ratio:.3f}" for ratio in ratios))
    low, high = interval(ratios)
    print(f"median {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median, from 10,000 resamples of a fixed seed."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(10_000))
    return medians[249], medians[9749]


def pollers() -> None:
    """Three pollers in one process of their own, which share the cores with the engine."""
    with (
        engine_for(None, NO_FLAGS, slots=4, own=True) as address,
        subprocess.Popen(
            [sys.executable, "-m", "tests.stress.poll", f"{address.url}/health", str(POLLERS), str(POLL_HZ)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as asking,
    ):
        answers, used = 0, 0.0

        def switch(on: bool) -> None:
            nonlocal answers, used
            assert asking.stdin is not None
            assert asking.stdout is not None
            print("on" if on else "off", file=asking.stdin, flush=True)
            more, took = asking.stdout.readline().split()
            answers, used = answers + int(more), used + float(took)

        switch(False)
        used = 0.0
        compare(address.url, switch, WINDOW_FOURS)
        switch(False)
        assert asking.stdin is not None
        asking.stdin.close()
    print(f"{answers} answers polled, {1000 * used / answers:.2f} ms of the pollers' processor time each")


def consoles() -> None:
    """Three consoles, stopped and continued by signals."""
    with engine_for(None, NO_FLAGS, slots=4, own=True) as address, ExitStack() as stack:
        screens = [stack.enter_context(opened(address.url, (120, 36))) for _ in range(POLLERS)]
        over = threading.Event()
        for screen in screens:
            screen.wait_for(b"tandem")
            threading.Thread(target=drain, args=(screen.terminal, over), daemon=True).start()

        def switch(on: bool) -> None:
            for screen in screens:
                os.kill(screen.pid, signal.SIGCONT if on else signal.SIGSTOP)

        try:
            compare(address.url, switch, CONSOLE_FOURS)
        finally:
            switch(True)
            over.set()


def drain(terminal: int, over: threading.Event) -> None:
    while not over.is_set():
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 1 << 16)


def compare(url: str, switch: Callable[[bool], None], fours: int) -> None:
    """One answer after another is streamed while `switch` turns those who watch on, off, off and on again, each for a
    window: what grows steadily, as the context does, weighs the same on both sides. Prints the rate of tokens on over
    the rate off, as the median over such fours within one answer and its 95 % interval."""
    stop, times, begun = threading.Event(), list[float](), list[float]()
    writing = threading.Thread(target=write_on, args=(url, times, begun, stop))
    writing.start()
    while len(times) < TOKENS:
        time.sleep(0.05)
    ratios = list[float]()
    while len(ratios) < fours:
        first = time.perf_counter()
        pace = {True: 0.0, False: 0.0}
        for on in (True, False, False, True) if len(ratios) % 2 == 0 else (False, True, True, False):
            switch(on)
            time.sleep(SETTLE_S)
            before = len(times)
            time.sleep(WINDOW_S)
            window = times[before:]
            if len(window) > 1:
                pace[on] += (window[-1] - window[0]) / (len(window) - 1)
        if all(not first < at < time.perf_counter() for at in begun) and all(pace.values()):
            ratios.append(pace[False] / pace[True])
    stop.set()
    writing.join()
    low, high = interval(ratios)
    print(f"{fours} fours of windows of {WINDOW_S} s, {len(times)} tokens")
    print(f"median {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")


def write_on(url: str, times: list[float], begun: list[float], stop: threading.Event) -> None:
    """Stream answers until `stop`. `times` gets the moment of each token, which is an event of its own while the reader
    keeps up, `begun` the first of each answer."""
    part = 0
    with httpx.Client(timeout=300) as client:
        while not stop.is_set():
            part += 1
            body = {
                "prompt": f"{STORY} Part {part}.",
                "max_tokens": CHAPTER,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            fresh = True
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        times.append(time.perf_counter())
                        if fresh:
                            begun.append(times[-1])
                            fresh = False
                    if stop.is_set():
                        return


def health() -> None:
    """Prints the latencies of `/health` in milliseconds, and how many probes met the load that they were meant for."""
    with engine_for(None, NO_FLAGS, slots=4, own=True) as address, httpx.Client(timeout=300) as client:
        url = address.url
        stop = threading.Event()
        streams = [threading.Thread(target=keep_busy, args=(url, f"{STORY} Part {i}.", 900, stop)) for i in range(3)]
        streams.append(
            threading.Thread(target=keep_busy, args=(url, "Sum it up: " + "the tide is high " * 1500, 1, stop))
        )
        for stream in streams:
            stream.start()
        time.sleep(2)
        took, full = [], 0
        for _ in range(PROBES):
            started = time.perf_counter()
            body = client.get(f"{url}/health").json()
            took.append(1000 * (time.perf_counter() - started))
            states = [lane["state"] for lane in body["lanes"]]
            full += states.count("decoding") == 3 and "prefilling" in states
            time.sleep(0.01)
        stop.set()
        for stream in streams:
            stream.join()
    cuts = statistics.quantiles(took, n=100)
    print(f"{PROBES} probes, {full} with three slots decoding and one reading")
    print(f"median {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, worst {max(took):.1f} ms")


def keep_busy(url: str, prompt: str, tokens: int, stop: threading.Event) -> None:
    turn = 0
    with httpx.Client(timeout=300) as client:
        while not stop.is_set():
            turn += 1
            complete(client, url, f"{turn}. {prompt}", tokens)


def start() -> None:
    """Prints the seconds from the command to the first `ok` of three starts."""
    for _ in range(3):
        began = time.perf_counter()
        with engine_for(None, NO_FLAGS, slots=4, own=True):
            print(f"ready after {time.perf_counter() - began:.1f} s")


COMMANDS: dict[str, Callable[[], None]] = {
    "slots": slots,
    "pollers": pollers,
    "consoles": consoles,
    "health": health,
    "start": start,
    "console": console,
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]]()
