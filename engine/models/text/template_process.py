"""The template process from outside: starts it on demand, hands it renders, and ends it where it goes over a limit.

A chat template is a program that comes with a model file, and Jinja's sandbox bounds what it reads, not what it costs:
`'x' * 5000000000`, `a ** (a ** a)` and a width of a billion are single operations of C code that hold the interpreter's
lock, so no check in this process can end them. A process of its own bounds the whole kind: the kernel ends it after
`CPU_S` of processor time (`ITIMER_PROF`) and refuses it memory past `MEMORY_MIB` (`RLIMIT_AS`), the engine's lock and
memory stay untouched, and the next render starts a new one, in about 0.1 s. It stays warm between renders: chats of 1,
10 and 100 messages took 0.04, 0.05 and 0.13 ms longer than in the engine's own process. So one mechanism serves every
template, trusted or not.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.models.text import template_worker as worker

CPU_S = 2.0
"""Processor time that compiling or rendering may take."""

MEMORY_MIB = 512
WALL_S = 10.0
"""How long a render may take on a busy box, and how long it may wait for those before it."""

MAX_SOURCE = 1 << 20
"""Characters of a template's source. The longest ones that models ship have about 30,000."""


class TemplateFault(Exception):
    """Ends the sentence 'the model's chat template ...'."""


class TemplateBroken(TemplateFault):
    """It does not compile."""


class TemplateRefused(TemplateFault):
    """It raised on these messages."""


class TemplateOverLimit(TemplateFault):
    """It was ended, for the limit that the message names."""


class TemplateBusy(Exception):
    """Renders of others take too long, or no process could be started; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What to render. `opening` counts the messages whose own text is looked for at the start; None for none.
    `characters` limits the text."""

    messages: Sequence[Mapping[str, Any]]
    opening: int | None
    add_generation_prompt: bool
    variables: Mapping[str, Any]
    characters: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text, and how many characters of it the opening messages made; None where they show otherwise alone."""

    text: str
    opening: int | None


class TemplateProcess:
    """One helper process, which renders for one caller at a time. Safe from any thread; never call it on the loop."""

    def __init__(self, *, cpu_s: float = CPU_S, memory_mib: int = MEMORY_MIB, wall_s: float = WALL_S) -> None:
        self._cpu_s = cpu_s
        self._memory_mib = memory_mib
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def compile(self, source: str) -> None:
        """Raises TemplateFault where the template cannot be compiled within the limits."""
        self._ask({"source": source})

    def render(self, source: str, rendering: Rendering) -> Rendered:
        """Render with the template `source`. Raises TemplateFault, or TemplateBusy."""
        request = {
            "source": source,
            "messages": rendering.messages,
            "opening": rendering.opening,
            "add_generation_prompt": rendering.add_generation_prompt,
            "variables": rendering.variables,
            "characters": rendering.characters,
        }
        opening, _, text = self._ask(request).partition(" ")
        return Rendered(text, int(opening) if opening != "-1" else None)

    def close(self) -> None:
        """End the process; a later render starts another."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any]) -> str:
        if len(request["source"]) > MAX_SOURCE:
            raise TemplateBroken(f"has {len(request['source']):,} characters, the limit is {MAX_SOURCE:,}")
        try:
            data = marshal.dumps(request, 2)
        except ValueError as error:
            raise TemplateRefused("cannot be given these messages: they nest too deep") from error
        if not self._lock.acquire(timeout=self._wall_s):
            raise TemplateBusy(f"chat templates of other requests took longer than {self._wall_s:g} s; try again")
        try:
            answer = self._exchange(data)
        finally:
            self._lock.release()
        letter, text = answer[:1], answer[1:].decode(errors="surrogatepass")
        if letter == worker.DONE:
            return text
        if letter == worker.BROKEN:
            raise TemplateBroken(f"does not compile: {text}")
        if letter == worker.REFUSED:
            raise TemplateRefused(f"refuses these messages: {text}")
        raise TemplateOverLimit(text)

    def _exchange(self, data: bytes) -> bytes:
        child = self._child
        if child is None or child.gone():
            self._end()
            child = self._child = self._start()
        try:
            return child.handler(data, time.monotonic() + self._wall_s)
        except TimeoutError:
            raise TemplateOverLimit(f"took longer than {self._wall_s:g} s") from None
        except (OSError, EOFError):
            raise self._why_gone(child.wait()) from None
        finally:
            if child.dirty:
                self._end()

    def _why_gone(self, code: int) -> TemplateFault:
        if code == -signal.SIGPROF:
            return TemplateOverLimit(f"took longer than {self._cpu_s:g} s")
        if code in (worker.MEMORY_EXIT, -signal.SIGKILL):
            return TemplateOverLimit(f"needed more than {self._memory_mib} MiB of memory")
        return TemplateOverLimit(f"ended the process that renders it (exit code {code})")

    def _start(self) -> _Child:
        try:
            return _Child(self._cpu_s, self._memory_mib)
        except OSError as error:
            raise TemplateBusy(f"the process that renders chat templates cannot be started: {error}") from error

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One process and its socket. Its end comes with `end`, with this object, or with the engine's process."""

    def __init__(self, cpu_s: float, memory_mib: int) -> None:
        self.dirty = False
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    # The folder of the program stays off the path: its modules would hide those of the library.
                    [sys.executable, "-P", worker.__file__, f"{cpu_s:g}", str(memory_mib)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")},
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        self.end = weakref.finalize(self, _end, self._process, ours)

    def gone(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """The exit code of a process that closed its socket; it is killed where it lives on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        self._process.kill()
        return self._process.wait()

    def handler(self, data: bytes, deadline: float) -> bytes:
        """Send a request, return the answer. Raises TimeoutError at the deadline, EOFError or OSError where the
        process has ended. The process can be used again only after a whole answer."""
        self.dirty = True
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._socket.sendall(worker.LENGTH.pack(len(data)) + data)
        answer = self._receive(worker.LENGTH.unpack(self._receive(worker.LENGTH.size, deadline))[0], deadline)
        self.dirty = answer[:1] == worker.LIMITED
        return bytes(answer)

    def _receive(self, n: int, deadline: float) -> bytearray:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return data


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()
