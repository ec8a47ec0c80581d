"""The service as a process: what refuses to start, how a signal drains it, how a second one ends it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig, ServiceConfig
from engine.process.listening import HostNotAllowed, PortInUse
from engine.process.state_dir import StateDirLocked, lock_state_dir, read_record
from engine.service import run
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def command(folder: Path, mode: str, port: int = 0) -> list[str]:
    return [sys.executable, "-m", "tests.engine.service_process", str(folder), str(port), mode]


@contextmanager
def service(folder: Path, mode: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running service and its address."""
    with subprocess.Popen(command(folder, mode), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            record = read_record(folder)
            assert record is not None
            assert record.pid == process.pid
            yield process, record.url
        finally:
            process.kill()


def stream_of(url: str, mode_begun: threading.Event, into: list[str]) -> None:
    with httpx.stream("POST", url + "/v1/chat/completions", json=CHAT, timeout=LONG_S) as response:
        for line in response.iter_lines():
            into.append(line)
            if "begun" in line:
                mode_begun.set()


@contextmanager
def streaming(url: str) -> Iterator[list[str]]:
    """A stream that is open and has its first text; its lines are complete when the block ends."""
    begun, lines = threading.Event(), list[str]()
    reader = threading.Thread(target=stream_of, args=(url, begun, lines))
    reader.start()
    assert begun.wait(LONG_S)
    yield lines
    reader.join(LONG_S)
    assert not reader.is_alive()


def test_drain_lets_a_stream_finish(tmp_path: Path) -> None:
    """SIGTERM with a stream open: it goes on to its end, others are refused, the exit code is 0."""
    with service(tmp_path, "slow") as (process, url):
        with streaming(url) as lines:
            process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: httpx.get(url + "/health").status_code == 503)
            refused = httpx.post(url + "/v1/chat/completions", json=CHAT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert httpx.post(url + "/admin/resume").status_code == 409
            (tmp_path / "finish").touch()
        assert lines[-2] == "data: [DONE]"
        assert any(" ended" in line for line in lines)
        assert process.wait(LONG_S) == 0
        assert process.communicate()[0] == "closed\n"
    assert not (tmp_path / "engine.json").exists()


def test_drain_is_bounded_and_ends_with_a_final_event(tmp_path: Path) -> None:
    with service(tmp_path, "hold") as (process, url):
        with streaming(url) as lines:
            process.send_signal(signal.SIGINT)
        assert '"code":"draining"' in lines[-2]
        assert process.wait(LONG_S) == 0


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with service(tmp_path, "slow") as (process, url):
        begun = threading.Event()

        def read() -> None:
            with pytest.raises(httpx.TransportError):
                stream_of(url, begun, [])

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(LONG_S)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG_S) == 1
        reader.join(LONG_S)
        assert process.communicate()[0] == "", "nothing was waited for"
    assert not (tmp_path / "engine.json").exists()


def test_a_signal_before_there_is_an_engine(tmp_path: Path) -> None:
    """The record and the lock are given back, and the exit code is that of a stop."""
    with service(tmp_path, "opening") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 0
        assert process.communicate() == ("", "")
    assert not (tmp_path / "engine.json").exists()


def test_a_signal_while_a_compiler_runs(tmp_path: Path) -> None:
    """Nothing waits for a load that is not wanted any more."""
    with service(tmp_path, "compiling") as (process, url):
        assert wait_until(lambda: read_record(tmp_path) is not None and httpx.get(url + "/health").status_code > 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 0
        assert process.communicate()[0] == "closed\n"


def test_no_search_for_garbage_stops_the_threads_while_the_model_loads(tmp_path: Path) -> None:
    with service(tmp_path, "garbage") as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "not searching\n"
        assert process.stdout.readline() == "searching among what is new\n"


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "broken"), capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 1
    assert done.stderr == "the model could not be loaded: the file's magic is wrong: not a model\n"
    assert done.stdout == "started\nclosed\n"


def forbidden(_: EngineConfig) -> object:
    raise AssertionError("nothing may be loaded")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_taken_port_refuses_before_loading(tmp_path: Path, host: str) -> None:
    config = EngineConfig(model=Path("none"), model_name="x", state_dir=tmp_path / "mine")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = ServiceConfig(host=host, port=other.getsockname()[1])
        with pytest.raises(PortInUse):
            run(config, taken, open_engine=forbidden)  # type: ignore[arg-type]
    with lock_state_dir(tmp_path / "mine"):
        pass


def test_a_held_state_directory_refuses_before_loading(tmp_path: Path) -> None:
    config = EngineConfig(model=Path("none"), model_name="x", state_dir=tmp_path)
    with lock_state_dir(tmp_path), pytest.raises(StateDirLocked, match=str(tmp_path)):
        run(config, ServiceConfig(port=0), open_engine=forbidden)  # type: ignore[arg-type]


def test_other_hosts_refuse_before_loading(tmp_path: Path) -> None:
    config = EngineConfig(model=Path("none"), model_name="x", state_dir=tmp_path / "never")
    with pytest.raises(HostNotAllowed):
        run(config, ServiceConfig(host="0.0.0.0", port=0), open_engine=forbidden)  # type: ignore[arg-type]
    assert not (tmp_path / "never").exists()
