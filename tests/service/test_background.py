"""`tandem start, stop, restart, status, logs` with real engines, and what a second engine is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.process.state_dir import is_locked, lock_state_dir, read_record
from tandem.client.register import Running
from tandem.client.wire import Address, NoAnswer, get, health
from tandem.exits import Exit
from tests.service.conftest import LONG_S, Box
from tests.support.scripted_engine import wait_until
from tests.support.sockets import heard_until

pytestmark = [pytest.mark.service, pytest.mark.model]


def test_status_tells_a_person_and_a_script(running: Box) -> None:
    words = running.tandem("status")
    assert words.returncode == Exit.OK
    assert f"at {running.record.url}, up " in words.stdout
    assert "0 of 2 busy" in words.stdout
    shown = json.loads(running.tandem("status", "--json").stdout)
    assert (shown["status"], shown["parallel"]["slots"], shown["model"]["max_len"]) == ("ok", 2, 1024)


def test_the_console_shows_one_frame(running: Box) -> None:
    frame = running.tandem("console", "--once")
    assert frame.returncode == Exit.OK
    assert "0 main" in frame.stdout
    assert "1 side" in frame.stdout


def test_compiled_kernels_serve_without_torch(running: Box) -> None:
    model = health(Address.of(running.record.url)).model
    assert model is not None
    if not (model.backend or "").startswith("native"):
        pytest.skip("no compiler here")
    assert "torch" not in Path(f"/proc/{running.record.pid}/maps").read_text()


def test_logs_show_the_last_lines_and_no_prompt(running: Box) -> None:
    assert running.tandem("chat", "marmalade", "--max-tokens", "4", "--temperature", "0").returncode == Exit.OK
    assert wait_until(lambda: running.last_logged["event"] == "[req]")
    shown = running.tandem("logs", "-n", "2", "--json")
    assert shown.returncode == Exit.OK
    lines = shown.stdout.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[-1])["event"] == "[req]"
    assert " [req] id=" in running.tandem("logs", "-n", "1").stdout
    assert "marmalade" not in running.tandem("logs", "-n", "10000").stdout


def test_usage_and_the_ledger_tell_what_was_served(running: Box) -> None:
    asked = running.tandem("chat", "marmalade", "--max-tokens", "5", "--temperature", "0")
    assert asked.returncode == Exit.OK
    address = Address.of(running.record.url)
    deadline = time.monotonic() + LONG_S
    while not (rows := json.loads(get(address, "/admin/requests?limit=1&q=chat")[1])["rows"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (row,) = rows
    assert 0 < row["completion_tokens"] <= 5
    assert 0 <= row["queue_s"] <= row["ttft_s"] <= row["total_s"]
    before = json.loads(running.tandem("usage", "--json").stdout)["total"]
    assert before["requests"] >= 1
    assert before["completion_tokens"] >= row["completion_tokens"]
    assert b"marmalade" not in (running.state_dir / "ledger.sqlite").read_bytes()


def test_an_operator_ends_a_stream(running: Box) -> None:
    address = Address.of(running.record.url)
    with open_stream(running, 900) as stream:
        deadline = time.monotonic() + LONG_S
        while not (here := [lane.request.id for lane in health(address).lanes if lane.request is not None]):
            assert time.monotonic() < deadline
        head = f"POST /admin/requests/{here[0]}/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", running.port), timeout=LONG_S) as operator:
            operator.sendall(head.encode())
            assert b'"done":true' in rest_of(operator)
        heard = heard_until(stream, lambda so_far: so_far.endswith(b"0\r\n\r\n"))
    assert b"cancelled by the operator" in heard
    while health(address).parallel.totals.cancelled != 1:
        assert time.monotonic() < deadline


def test_a_second_start_is_refused(running: Box) -> None:
    refused = running.tandem("start", "--port", "0")
    assert refused.returncode == Exit.REFUSED
    assert running.record.url in refused.stderr
    assert "--another" in refused.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_second_engine_on_the_port_is_refused_before_its_model_is_read(
    running: Box, tmp_path: Path, host: str
) -> None:
    words = ["--host", host, "--port", str(running.port), "--state-dir", str(tmp_path), "--model", "no-such-model"]
    refused = running.tandem("serve", *words)
    assert refused.returncode == Exit.REFUSED
    assert f"port {running.port}" in refused.stderr


def test_a_second_engine_on_the_state_directory_is_refused(running: Box) -> None:
    refused = running.tandem("serve", "--port", "0")
    assert refused.returncode == Exit.REFUSED
    assert f"process {running.record.pid}" in refused.stderr


def test_another_engine_runs_beside_it_and_must_be_chosen(running: Box, tmp_path: Path) -> None:
    started = running.tandem("start", "--another", "--port", "0", "--state-dir", str(tmp_path / "two"))
    assert started.returncode == Exit.OK, started.stderr
    assert running.tandem("status").returncode == Exit.USAGE
    assert running.tandem("stop").returncode == Exit.USAGE
    assert running.tandem("status", "--state-dir", str(tmp_path / "two")).returncode == Exit.OK
    assert running.tandem("stop", "--state-dir", str(tmp_path / "two")).returncode == Exit.OK
    assert running.tandem("status").returncode == Exit.OK


def test_restart_keeps_the_flags(box: Box) -> None:
    assert box.tandem("start", "--parallel", "3").returncode == Exit.OK
    first = box.record.pid
    assert box.tandem("restart").returncode == Exit.OK
    assert box.record.pid != first
    assert json.loads(box.tandem("status", "--json").stdout)["parallel"]["slots"] == 3
    assert box.tandem("stop").returncode == Exit.OK
    assert not is_locked(box.state_dir)
    for command in ("status", "stop"):
        assert box.tandem(command).returncode == Exit.NOT_RUNNING
    assert (box.state_dir / "engine.log.1").exists()


def test_a_killed_engine_is_started_again(running: Box) -> None:
    first = running.record.pid
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + LONG_S
    while (record := read_record(running.state_dir)) is None or record.pid == first:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    wait_status(running, "ok")
    supervisor = json.loads(running.tandem("status", "--json").stdout)["supervisor"]
    assert (supervisor["state"], supervisor["restarts"], supervisor["engine_pid"]) == ("watching", 1, record.pid)
    assert "SIGKILL" in supervisor["last_cause"]
    assert "restarted once" in running.tandem("status").stdout


def test_hold_stops_runs_and_starts_again(running: Box) -> None:
    """The command sees no engine; its exit code comes through; the flags and variables are those of before."""
    before = running.record
    held = running.tandem("hold", "2", "--", sys.executable, "-m", "tandem", "status")
    assert held.returncode == Exit.NOT_RUNNING, held.stderr
    assert "the box is held by process" in held.stderr
    assert (running.record.url, running.record.pid != before.pid) == (before.url, True)
    with open_stream(running, 900):
        refused = running.tandem("hold", "1", "--", "true")
    assert refused.returncode == Exit.REFUSED
    assert "1 request runs or waits" in refused.stderr


def test_start_ends_what_a_killed_hold_began(running: Box) -> None:
    holding = running.spawn("hold", "2", "--", "sleep", "60")
    deadline = time.monotonic() + LONG_S
    while Running.find(running.state_dir) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = running.tandem("start")
    assert refused.returncode == Exit.REFUSED
    assert f"held by process {holding.pid}" in refused.stderr
    holding.kill()
    holding.wait()
    gone = running.tandem("status")
    assert gone.returncode == Exit.NOT_RUNNING
    assert "`tandem start` does" in gone.stderr
    assert running.tandem("start").returncode == Exit.OK
    assert running.tandem("status").returncode == Exit.OK


def test_systemd_hears_how_a_real_engine_is(box: Box) -> None:
    name = f"@tandem-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:])
        systemd.settimeout(LONG_S)
        box.env.update(NOTIFY_SOCKET=name, WATCHDOG_USEC="600000")

        def hear_until(word: bytes) -> bytes:
            heard = b""
            while word not in heard:
                heard += systemd.recv(4096) + b"\n"
            return heard

        with box.spawn("serve") as engine:
            loading = hear_until(b"READY=1")
            assert b"EXTEND_TIMEOUT_USEC=" in loading
            assert b"STATUS=loading: " in loading
            assert b"WATCHDOG=1" not in loading
            hear_until(b"WATCHDOG=1")
            hear_until(b"WATCHDOG=1")
            assert b"STATUS=ok: 0 of 2 slots busy" in hear_until(b"STATUS=")
            engine.terminate()
            assert b"EXTEND_TIMEOUT_USEC=45000000" in hear_until(b"STOPPING=1")
            assert engine.wait(LONG_S) == Exit.OK


def test_not_ready_in_time_exits_4_and_goes_on(box: Box) -> None:
    late = box.tandem("start", "--wait", "0")
    assert late.returncode == Exit.NOT_READY
    assert "not ready within 0 s" in late.stderr
    deadline = time.monotonic() + LONG_S
    while not is_locked(box.state_dir):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_damaged_model_exits_1_with_the_words_of_the_log(box: Box, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00")
    for command in ("serve", "start"):
        failed = box.tandem(command, "--model", str(damaged))
        assert failed.returncode == Exit.FAILURE
        assert str(damaged) in failed.stderr
        assert "Traceback" not in failed.stderr
    assert not is_locked(box.state_dir)


def test_stop_kills_what_does_not_end(box: Box) -> None:
    assert box.tandem("start").returncode == Exit.OK
    pid = box.record.pid
    os.kill(pid, signal.SIGSTOP)
    stopped = box.tandem("stop", "--timeout", "0.3")
    assert stopped.returncode == Exit.OK
    assert f"process {pid} did not end within 0.3 s" in stopped.stderr
    assert not is_locked(box.state_dir)


def test_a_state_directory_held_by_a_strange_process_is_named(box: Box) -> None:
    with lock_state_dir(box.state_dir):
        refused = box.tandem("serve")
    assert refused.returncode == Exit.REFUSED
    assert str(box.state_dir) in refused.stderr


@contextmanager
def open_stream(box: Box, tokens: int) -> Iterator[socket.socket]:
    """A streamed request whose first text has arrived."""
    asked = {
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", box.port), timeout=LONG_S) as stream:
        stream.sendall(head.encode() + body)
        heard_until(stream, lambda heard: b'"content":"' in heard.replace(b'"content":""', b""))
        yield stream


def rest_of(stream: socket.socket) -> bytes:
    heard = b""
    while part := stream.recv(65536):
        heard += part
    return heard


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_open_stream_end(box: Box, number: signal.Signals) -> None:
    with box.spawn("serve") as engine:
        wait_status(box, "ok")
        with open_stream(box, 40) as stream:
            engine.send_signal(number)
            assert b"data: [DONE]" in rest_of(stream)
        assert engine.wait(LONG_S) == Exit.OK


def test_a_stream_that_outlasts_the_drain_gets_a_final_event(box: Box) -> None:
    box.env["TANDEM_DRAIN_TIMEOUT"] = "0.2"
    with box.spawn("serve") as engine:
        wait_status(box, "ok")
        with open_stream(box, 900) as stream:
            engine.terminate()
            assert b'"error"' in rest_of(stream)
        assert engine.wait(LONG_S) == Exit.OK


def test_a_signal_in_a_long_read_is_bounded(box: Box) -> None:
    box.env["TANDEM_DRAIN_TIMEOUT"] = "0.05"
    body = json.dumps({"prompt": list(range(10, 1000)), "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with box.spawn("serve") as engine:
        wait_status(box, "ok")
        with socket.create_connection(("127.0.0.1", box.port), timeout=LONG_S) as stream:
            stream.sendall(head.encode() + body)
            address = Address.of(f"http://127.0.0.1:{box.port}")
            assert wait_until(lambda: health(address).lanes[0].state == "prefilling")
            engine.terminate()
            heard = rest_of(stream)
            assert b'"code":"draining"' in heard
            assert b'"text":"' not in heard
        assert engine.wait(LONG_S) == Exit.OK


def test_a_second_signal_ends_at_once(box: Box) -> None:
    with box.spawn("serve") as engine:
        wait_status(box, "ok")
        with open_stream(box, 900):
            engine.terminate()
            wait_status(box, "draining")
            engine.terminate()
            assert engine.wait(LONG_S) == Exit.FAILURE
    assert not is_locked(box.state_dir)


def wait_status(box: Box, wanted: str) -> None:
    """Wait until the box's engine says that it is `wanted`."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            if health(Address.of(f"http://127.0.0.1:{box.port}")).status == wanted:
                return
        except NoAnswer:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
