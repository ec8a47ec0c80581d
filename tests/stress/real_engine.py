"""A real engine under hard limits, for what attacks, kills and soaks it: its process, its memory cap, its figures."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.process.keyring import ADMIN, METRICS, Secret, digest, write_secrets
from tests.support.models import default_model

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
READY_S = 120.0
END_S = 20.0
DESCRIPTORS = 1024


class EngineDied(Exception):
    """The engine's process ended by itself. The message holds the end of its log."""


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer; `status` 0 where the connection ended before a status line came."""

    status: int
    head: bytes
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """A header's text, empty where it is absent."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode("latin-1")
        return ""


class MemoryCap:
    """The most memory that a process and its children may take, set by a control group (v2 or v1) where one can be
    made. Elsewhere `kind` says so, and whoever measures compares the resident memory with `limit`."""

    def __init__(self, limit: int = 3 * GIB) -> None:
        self.limit = limit
        self.folder: Path | None = None
        self.kind = "measured only: no memory control group can be made here"
        for version, parent, name in _group_parents():
            folder = parent / f"tandem-stress-{os.getpid()}-{secrets.token_hex(3)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                # Only the kernel's own file counts: in a plain folder, writing would make another one.
                with (folder / name).open("r+") as file:
                    file.write(str(limit))
            except OSError:
                folder.rmdir()
                continue
            self.folder, self.kind = folder, f"control group v{version}, {name} = {limit / GIB:g} GiB"
            return

    def enter(self) -> None:
        """Put the calling process under the cap; called between fork and exec."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text("0")

    def kills(self) -> int:
        """How many processes the kernel has ended for it."""
        for name in ("memory.events", "memory.oom_control"):
            if self.folder is not None and (self.folder / name).exists():
                words = dict(line.split() for line in (self.folder / name).read_text().splitlines())
                return int(words.get("oom_kill", 0))
        return 0

    def remove(self) -> None:
        """Remove the group once its processes are gone; the kernel takes a moment to forget them."""
        for _ in range(100):
            if self.folder is None or not self.folder.exists():
                return
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.05)


def _group_parents() -> Iterator[tuple[int, Path, str]]:
    """Where a group with a memory limit might be made: beside this process's own group first, then at the root."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        paths["v2" if number == "0" else controllers] = path.lstrip("/")
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        for path in dict.fromkeys((paths.get("v2", ""), "")):
            yield 2, mount / path, "memory.max"
    for path in dict.fromkeys((paths.get("memory", ""), "")):
        yield 1, Path("/sys/fs/cgroup/memory") / path, "memory.limit_in_bytes"


class RealEngine:
    """One engine process on a free loopback port, with API keys on. Kill and start it again as often as you like; the
    state directory stays."""

    def __init__(
        self,
        folder: Path,
        *,
        model: Path | None = None,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        cap: MemoryCap | None = None,
        output: int | None = None,
    ) -> None:
        """`arguments` follow `tandem serve`; `environment` adds settings (`TANDEM_...`). The process gets the
        descriptor `output` as stdout and stderr, else its log's file."""
        self._output = output
        self.folder = folder
        self.state_dir = folder / "state"
        self.port = free_port()
        self.cap = cap
        self.key, self.admin, self.metrics = (secrets.token_urlsafe(18) for _ in range(3))
        self._model = model or default_model()
        self._arguments = list(arguments)
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "config").mkdir(parents=True, exist_ok=True)
        labels = {"attacker": self.key, ADMIN: self.admin, METRICS: self.metrics}
        held = tuple(Secret(label, digest(secret.encode()), time.time()) for label, secret in labels.items())
        write_secrets(folder / "secrets.json", held)

    @property
    def log_path(self) -> Path:
        return self.folder / "engine.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process; returns at once."""
        environ = {name: text for name, text in os.environ.items() if not name.startswith("TANDEM_")}
        environ |= {
            "TANDEM_CONFIG_DIR": str(self.folder / "config"),
            "TANDEM_SECRETS_FILE": str(self.folder / "secrets.json"),
            "XDG_STATE_HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            **self._environment,
        }
        command = [sys.executable, "-m", "tandem", "serve", "--unlisted", f"--model={self._model}"]
        command += [f"--port={self.port}", f"--state-dir={self.state_dir}", *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log if self._output is None else self._output,
                stderr=log if self._output is None else self._output,
                start_new_session=True,
                preexec_fn=self._limit,
            )

    def start(self) -> None:
        """Start the process and wait until it serves. Raises EngineDied."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if not self.alive:
                raise EngineDied(self.log_end())
            with contextlib.suppress(OSError):
                if self.get("/health", timeout_s=5.0).status == 200:
                    return
            time.sleep(0.05)
        raise EngineDied(f"not ready after {READY_S:g} s:\n{self.log_end()}")

    def kill(self) -> None:
        """SIGKILL, to the engine and what it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL where it does not end."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.kill()

    def log_end(self, characters: int = 2000) -> str:
        return self.log_path.read_text(errors="replace")[-characters:]

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        if self.cap is not None:
            self.cap.enter()

    # What a client does.

    def connect(self, timeout_s: float = 30.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def head(self, method: str, path: str, *, secret: str | None = None, length: int | None = None) -> bytes:
        """The bytes of a request's head. `secret` None carries the API key, "" carries none."""
        secret = self.key if secret is None else secret
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"Authorization: Bearer {secret}"] if secret else []
        lines += [f"Content-Length: {length}", "Content-Type: application/json"] if length is not None else []
        return "\r\n".join([*lines, "", ""]).encode()

    def post(self, path: str, body: object, *, secret: str | None = None, timeout_s: float = 30.0) -> Answer:
        """`body`: bytes as they are, anything else as JSON. Raises OSError where no connection can be made."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(self.head("POST", path, secret=secret, length=len(data)) + data, timeout_s)

    def get(self, path: str, *, secret: str | None = None, timeout_s: float = 30.0) -> Answer:
        """With the admin token unless `secret` says otherwise."""
        return self._ask(self.head("GET", path, secret=self.admin if secret is None else secret), timeout_s)

    def _ask(self, request: bytes, timeout_s: float) -> Answer:
        with self.connect(timeout_s) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            return read_answer(connection)

    def health(self) -> Any:
        """The body of `/health`."""
        return self.get("/health").json()

    # What the system says of it.

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def rss(self) -> int:
        """Resident bytes of the process now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def read_answer(connection: socket.socket) -> Answer:
    """One whole answer with a Content-Length, or all there is until the end of the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while (end := got.find(b"\r\n\r\n")) < 0:
            if not (part := connection.recv(1 << 16)):
                return Answer(0, got, b"")
            got += part
        head, body = got[:end], got[end + 4 :]
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None
        )
        while (length is None or len(body) < length) and (part := connection.recv(1 << 16)):
            body += part
            if length is None and body.endswith(b"0\r\n\r\n"):
                break
        return Answer(int(head.split(b" ", 2)[1]), head, body)
    return Answer(0, got, b"")


def free_port() -> int:
    """A port that is free now, below those that the system hands out by itself."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def running_engine(
    *,
    model: Path | None = None,
    arguments: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    output: int | None = None,
) -> Iterator[RealEngine]:
    """An engine that serves, in a folder and under a memory cap of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-stress-"))
    cap = MemoryCap()
    engine = RealEngine(folder, model=model, arguments=arguments, environment=environment, cap=cap, output=output)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        cap.remove()
        shutil.rmtree(folder, ignore_errors=True)
