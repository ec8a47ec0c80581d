"""Streams that nobody reads, a stopped supervisor, a state directory that takes nothing: requests are served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.process.locks import holder
from engine.process.state_dir import LOCK_NAME, RECORD_NAME
from tandem.service.supervisor_report import read_report
from tests.service.conftest import LONG_S, ROOT, Box
from tests.support.scripted_engine import wait_until

pytestmark = [pytest.mark.service, pytest.mark.model]

REQUESTS = 200


def serve_all(url: str) -> None:
    """Short requests, one after another; each is answered."""
    with httpx.Client(base_url=url, timeout=LONG_S) as client:
        for number in range(REQUESTS):
            asked = {"prompt": [number + 10], "max_tokens": 1}
            assert client.post("/v1/completions", json=asked).status_code == 200


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that is full, and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


def test_requests_are_served_and_a_signal_ends_it_when_nobody_reads_its_stderr(box: Box, full_pipe: int) -> None:
    command = box.command("serve", "--unlisted", f"--state-dir={box.state_dir}")
    with subprocess.Popen(command, env=box.env, cwd=ROOT, stdout=full_pipe, stderr=full_pipe) as process:
        try:
            url = f"http://127.0.0.1:{box.port}"
            assert wait_until(lambda: ready(url), timeout_s=LONG_S)
            serve_all(url)
            shown = httpx.get(f"{url}/health").json()
            assert (shown["status"], shown["parallel"]["totals"]["served"]) == ("ok", REQUESTS)
            assert shown["log"]["dropped"] > 0
            assert os.get_blocking(full_pipe), "the pipe is shared: its other holders keep their setting"
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_S) == 0
        finally:
            process.kill()


def test_a_stopped_supervisor_and_a_directory_that_takes_no_record_stop_nothing(box: Box) -> None:
    """As on a full disk: no draft of a file can be written. After the engine is killed it starts again."""
    box.state_dir.mkdir(parents=True, mode=0o700)
    for name in (RECORD_NAME, "launch.json"):
        (box.state_dir / f"{name}.new").mkdir()
    started = box.tandem("start")
    assert started.returncode == 0, started.stderr
    assert f"its record {box.state_dir / RECORD_NAME} could not be written" in started.stderr
    url = f"http://127.0.0.1:{box.port}"

    first = read_report(box.state_dir)
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    try:
        serve_all(url)
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
    finally:
        os.kill(first.pid, signal.SIGCONT)

    assert first.engine_pid is not None
    os.kill(first.engine_pid, signal.SIGKILL)
    assert wait_until(lambda: restarted(box.state_dir, first.engine_pid), timeout_s=LONG_S)
    status = box.tandem("status")
    assert f"{box.state_dir / RECORD_NAME} could not be written: Is a directory" in status.stdout
    assert "restarted once" in status.stdout
    assert box.tandem("stop").returncode == 0
    assert holder(box.state_dir / LOCK_NAME) is None


def ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").status_code == 200
    return False


def restarted(state_dir: Path, before: int | None) -> bool:
    report: dict[str, Any] = json.loads((state_dir / "supervisor.json").read_text())
    return report["state"] == "watching" and report["engine_pid"] not in (None, before)
