"""Figures of the console on a pseudo terminal against a scripted engine of 8 lanes and 500 waiting requests.

First frame, how long a change takes to the screen, snapshots that never reached it, and the console's share of a core.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
from msgspec.structs import replace

from engine.protocol import Health
from tests.support import fake_health
from tests.support.fake_health import FakeHealth

SIZES = ((80, 24), (200, 60))
# Overview and queue: everything at once, and the longest list.
VIEWS = (("overview", b"1"), ("queue", b"3"))
STARTS = 5
FLIPS = 60
STEADY_S = 20.0
_MARK = re.compile(rb"mark-(\d{4})")


@dataclass
class Marked:
    """The scene, with a number for the first lane's client: a new one with each snapshot, or when `flip` says so."""

    each: bool = False
    number: int = 0
    served: list[int] = field(default_factory=list)

    def __call__(self, t: float) -> Health:
        if self.each:
            self.number += 1
        self.served.append(self.number)
        body = fake_health.crowd(t)
        first = body.lanes[0]
        assert first.request is not None
        marked = replace(first, request=replace(first.request, client=f"mark-{self.number:04}"))
        return replace(body, lanes=[marked, *body.lanes[1:]])

    def flip(self) -> bytes:
        self.number += 1
        return f"mark-{self.number:04}".encode()


@dataclass
class Screen:
    """A console on a terminal, and what it wrote."""

    pid: int
    terminal: int
    started: float
    written: bytearray = field(default_factory=bytearray)

    def read(self, seconds: float) -> None:
        """Take in what comes within so long."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                return
            self.written += os.read(self.terminal, 1 << 16)

    def wait_for(self, words: bytes, timeout: float = 20.0) -> float:
        """Seconds until the words were written, from now."""
        begun, seen = time.perf_counter(), max(0, len(self.written) - len(words))
        while words not in self.written[seen:]:
            if time.perf_counter() - begun > timeout:
                raise TimeoutError(f"{words!r} never came")
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.written += os.read(self.terminal, 1 << 16)
        return time.perf_counter() - begun


@contextmanager
def opened(url: str, size: tuple[int, int]) -> Iterator[Screen]:
    """`tandem console` on a new terminal of that size."""
    started = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        os.environ.update(TERM="xterm-256color", COLUMNS="", LINES="")
        os.execv(sys.executable, [sys.executable, "-m", "tandem", "console", "--url", url])
    screen = Screen(pid, terminal, started)
    try:
        yield screen
    finally:
        os.kill(pid, signal.SIGTERM)
        # A console that cannot write its farewell does not end; the terminal's end reads as an error.
        with suppress(OSError):
            while os.read(terminal, 1 << 16):
                pass
        os.waitpid(pid, 0)
        os.close(terminal)


def console() -> None:
    """Prints a line a figure; times in milliseconds."""
    scene = Marked()
    with FakeHealth(scene) as server:
        for size in SIZES:
            first = sorted(_first_frame(server.url, size) for _ in range(STARTS))
            bare, wall, used = (_list([start[index] for start in first]) for index in (0, 1, 2))
            print(f"{size[0]}x{size[1]} first frame: {bare}; with figures: {wall}; processor time {used}")
        for size in SIZES:
            for name, key in VIEWS:
                print(f"{size[0]}x{size[1]} {name}: {_steady(server.url, size, key, scene)}")
            print(f"{size[0]}x{size[1]} change to screen: {_changes(server.url, size, scene)}")


def _first_frame(url: str, size: tuple[int, int]) -> tuple[float, float, float]:
    """From exec to the first frame, to the first with figures, and the processor time that took."""
    with opened(url, size) as screen:
        screen.wait_for(b"tandem")
        bare = time.perf_counter() - screen.started
        screen.wait_for(b"mark-")
        took = time.perf_counter() - screen.started
        used = psutil.Process(screen.pid).cpu_times()
        return bare, took, used.user + used.system


def _changes(url: str, size: tuple[int, int], scene: Marked) -> str:
    """The engine says something else at a random moment; how long until that is written."""
    draw = random.Random(1)
    took = []
    with opened(url, size) as screen:
        screen.wait_for(b"mark-")
        for _ in range(FLIPS):
            screen.read(draw.uniform(0.3, 0.6))
            took.append(screen.wait_for(scene.flip()))
    took.sort()
    return f"median {took[len(took) // 2] * 1000:.0f}, p95 {took[int(len(took) * 0.95)] * 1000:.0f}"


def _steady(url: str, size: tuple[int, int], key: bytes, scene: Marked) -> str:
    """The share of a core, and the snapshots fetched that were never drawn."""
    with opened(url, size) as screen:
        screen.wait_for(b"mark-")
        os.write(screen.terminal, key)
        screen.read(2.0)
        process = psutil.Process(screen.pid)
        scene.each, scene.served = key == b"1", []
        screen.written.clear()
        before, begun = process.cpu_times(), time.perf_counter()
        screen.read(STEADY_S)
        after, wall = process.cpu_times(), time.perf_counter() - begun
        served, scene.each = scene.served[:-1], False
        screen.read(1.0)
    used = after.user + after.system - before.user - before.system
    written = len(screen.written) / wall
    drawn = {int(number) for number in _MARK.findall(bytes(screen.written))}
    lost = f", {len(set(served) - drawn)} of {len(served)} snapshots not drawn" if key == b"1" else ""
    return f"{100 * used / wall:.1f} % of a core, {written / 1000:.1f} kB/s{lost}"


def _list(seconds: list[float]) -> str:
    return " ".join(f"{second * 1000:.0f}" for second in seconds)
