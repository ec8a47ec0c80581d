"""Figures of one real engine that a suite must not assert: `python -m tests.stress.measure WORD`.

slots    what idle slots cost one request: engines of one and of four slots side by side, alternating pairs
pollers  what three consoles cost serving: /health asked by three at 4 Hz, and by none, alternating
health   latency of /health while three slots decode and a fourth reads a long prompt
start    from `tandem serve` to ready, the model being in the cache
console  the console on a terminal: first frame, a change to the screen, its share of a core; no engine needed
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import httpx

from tandem.origins import NO_FLAGS
from tandem.own_engine import engine_for
from tests.stress.console import console

PAIRS = 10
TOKENS = 192
POLLERS = 3
POLL_HZ = 4
WINDOW_S = 1.5
WINDOW_PAIRS = 40
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
    """One answer after another is streamed while three pollers are switched on and off. Prints the rate of tokens with
    them over the rate without, as the median over pairs of neighbouring windows and its 95 % interval. The pollers live
    in a process of their own, as consoles do, and share the cores with the engine."""
    stop = threading.Event()
    tokens = [0]
    with (
        engine_for(None, NO_FLAGS, slots=4, own=True) as address,
        subprocess.Popen(
            [sys.executable, "-m", "tests.stress.poll", f"{address.url}/health", str(POLLERS), str(POLL_HZ)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as asking,
    ):
        writing = threading.Thread(target=count_tokens, args=(address.url, tokens, stop))
        writing.start()
        while tokens[0] < TOKENS:
            time.sleep(0.05)
        ratios, asked = [], 0
        for pair in range(WINDOW_PAIRS):
            rate = {}
            for polled in (True, False) if pair % 2 == 0 else (False, True):
                asked += order(asking, "on" if polled else "off")
                before, started = tokens[0], time.perf_counter()
                time.sleep(WINDOW_S)
                rate[polled] = (tokens[0] - before) / (time.perf_counter() - started)
            ratios.append(rate[True] / rate[False])
        asked += order(asking, "off")
        stop.set()
        writing.join()
        assert asking.stdin is not None
        asking.stdin.close()
    low, high = interval(ratios)
    print(f"{WINDOW_PAIRS} pairs of {WINDOW_S} s, {tokens[0]} tokens, {asked} answers polled")
    print(f"median {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")


def count_tokens(url: str, tokens: list[int], stop: threading.Event) -> None:
    """Stream answers until `stop`; each token is an event of its own while the reader keeps up."""
    part = 0
    with httpx.Client(timeout=300) as client:
        while not stop.is_set():
            part += 1
            body = {
                "prompt": f"{STORY} Part {part}.",
                "max_tokens": 1500,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    tokens[0] += line.startswith("data:")
                    if stop.is_set():
                        return


def order(asking: subprocess.Popen[str], word: str) -> int:
    """Start or stop the pollers; how many answers they had since the last word."""
    assert asking.stdin is not None
    assert asking.stdout is not None
    print(word, file=asking.stdin, flush=True)
    return int(asking.stdout.readline())


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
    "health": health,
    "start": start,
    "console": console,
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]]()
