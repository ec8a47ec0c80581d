"""A box of its own for tests that start real engines through the command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.process.listening import PortInUse, bind
from engine.process.state_dir import ServiceRecord, read_record
from tandem.client.register import Running
from tandem.settings.table import ALIAS_PREFIXES, PREFIX
from tests.support.models import default_model

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 120.0


@dataclass(frozen=True)
class Box:
    """A user's folders and a free port; `tandem` runs a command there and waits for its end."""

    env: dict[str, str]
    state_dir: Path
    port: int

    def tandem(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args), env=self.env, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=LONG_S
        )

    def spawn(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*args), env=self.env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "tandem", *args]

    @property
    def record(self) -> ServiceRecord:
        record = read_record(self.state_dir)
        assert record is not None
        return record

    @property
    def last_logged(self) -> dict[str, Any]:
        """The last whole line of the engine's log, which reaches it after what it tells of."""
        whole, _, _ = (self.state_dir / "engine.log").read_text().rpartition("\n")
        line: dict[str, Any] = json.loads(whole.rpartition("\n")[2])
        return line


def free_port() -> int:
    """A port that is free now and stays so until the engine takes it, also between a stop and a start: it lies below
    those that systems hand out by themselves, and each process of a parallel run has ports of its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
    while True:
        try:
            bind("127.0.0.1", port := random.randrange(20_000, 32_000, 16) + worker).close()
        except PortInUse:
            continue
        return port


def make_box(folder: Path) -> Box:
    """An empty box whose settings name the built-in model, two slots and short windows."""
    port = free_port()
    config = folder / "config"
    config.mkdir()
    (config / "serve.env").write_text(
        f"TANDEM_MODEL='{default_model()}'\nTANDEM_PORT={port}\nTANDEM_MAX_LEN=1024\nTANDEM_PARALLEL=2\n"
    )
    env = {name: text for name, text in os.environ.items() if not name.startswith((PREFIX, *ALIAS_PREFIXES))}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "TANDEM_CONFIG_DIR": str(config), "COLUMNS": "100"}
    return Box(env, folder / "state" / "tandem" / "engine", port)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box on which nothing runs; whatever a test leaves running there is stopped."""
    there = make_box(tmp_path)
    yield there
    if Running.find(there.state_dir) is not None:
        there.tandem("stop", "--timeout", "5")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box whose engine runs in the background, shared by a module's tests."""
    there = make_box(tmp_path_factory.mktemp("box"))
    started = there.tandem("start")
    assert started.returncode == 0, started.stderr
    yield there
    assert there.tandem("stop").returncode == 0
