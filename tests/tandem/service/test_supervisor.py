"""The supervisor over small processes of its own: what it starts again, what it ends, what it says of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.config import ServiceConfig
from engine.process.owner_socket import owner_socket
from engine.process.state_dir import ServiceRecord, held, lock_state_dir, write_record
from tandem.service.claims import SUPERVISOR_LOCK
from tandem.service.rotation import LOG_NAME, RotatingLog
from tandem.service.supervisor import HealthProbe, Probe, Supervisor, describe_end
from tandem.service.supervisor_report import REPORT_NAME, Report, State, describe_report, read_report, write_report
from tandem.service.watchdog import Policy, ProbeResult
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, wait_until
from tests.support.served import served

QUICK = Policy(probe_s=0.05, answer_s=1.0, pause_s=0.01, longest_pause_s=0.02, restarts=2, healthy_s=60.0)
FOREVER = "import time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def watched(folder: Path) -> str:
    """The start of a script: it goes on once its supervisor has said that it was ready."""
    said = f"open({str(folder / REPORT_NAME)!r}).read()"
    return f"import os, time\nprint('up', flush=True)\nwhile '\"{State.WATCHING}\"' not in {said}: time.sleep(0.01)\n"


def supervise(
    folder: Path, script: str, seen: Callable[[], ProbeResult], *, drain_s: float = 10.0, as_json: bool = True
) -> tuple[int, Report, str]:
    """Run a supervisor over `script` to its end. Returns its exit code, its last report and the log."""
    probe: Probe = lambda _dir, _pid, _within: (seen(), "as the test wants")  # noqa: E731
    with RotatingLog(folder / LOG_NAME) as log:
        supervisor = Supervisor(
            [sys.executable, "-c", script],
            folder,
            log,
            policy=QUICK,
            drain_s=drain_s,
            pid=os.getpid(),
            as_json=as_json,
            probe=probe,
        )
        code = supervisor.run()
    report = read_report(folder)
    assert report is not None
    return code, report, (folder / LOG_NAME).read_text()


def up(folder: Path, lives: int = 1) -> bool:
    log = folder / LOG_NAME
    return log.exists() and log.read_text().count("up\n") >= lives


def later(folder: Path, act: Callable[[], None], lives: int = 1) -> None:
    """Do `act` once the child of that life is up."""

    def wait() -> None:
        assert wait_until(lambda: up(folder, lives))
        act()

    threading.Thread(target=wait).start()


def to_self(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); " + (
        "time.sleep(60)"
    )
    later(tmp_path, to_self(number))
    code, report, _ = supervise(tmp_path, script, lambda: ProbeResult.OK)
    assert (code, report.state, report.restarts, report.engine_pid) == (0, State.ENDED, 0, None)


def test_an_engine_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.service.supervisor.CLOSING_S", 0.2)
    later(tmp_path, to_self(signal.SIGTERM))
    code, report, log = supervise(tmp_path, DEAF, lambda: ProbeResult.OK, drain_s=0.0)
    assert (code, report.state, report.reason) == (0, State.ENDED, "it had to be killed")
    assert "did not end within 0.2 s; killing it" in log


def test_a_hung_engine_says_where_it_stands_and_is_started_again(tmp_path: Path) -> None:
    script = "import faulthandler; faulthandler.enable(); " + FOREVER
    results = iter([ProbeResult.OK] * 3 + [ProbeResult.SILENT] * 3)
    later(tmp_path, to_self(signal.SIGTERM), lives=2)
    code, report, log = supervise(
        tmp_path, script, lambda: next(results, ProbeResult.LOADING) if up(tmp_path) else ProbeResult.LOADING
    )
    assert (code, report.state, report.restarts) == (0, State.ENDED, 1)
    assert report.last_cause == "hung: 3 probes in a row failed, the last one: as the test wants"
    assert "Fatal Python error: Aborted" in log
    assert log.count("up\n") == 2


def test_a_crash_loop_ends_with_a_reason_and_the_engines_code(tmp_path: Path) -> None:
    # Each life is ready before it ends, with an error and a last word.
    script = watched(tmp_path) + "print('the disk is gone'); raise SystemExit(1)"
    code, report, log = supervise(tmp_path, script, lambda: ProbeResult.OK)
    assert (code, report.state, report.restarts) == (1, State.GAVE_UP, 2)
    assert report.reason is not None
    assert report.reason.startswith("2 restarts in a row did not help")
    assert report.reason.endswith("the engine ended with exit code 1 (the disk is gone)")
    assert log.count("up\n") == 3
    assert '"event":"given up: ' in log


def test_what_it_gave_up_for_is_told_on_a_disk_without_room_for_a_second_report(tmp_path: Path) -> None:
    write_report(tmp_path, Report(pid=os.getpid(), engine_pid=1, state=State.WATCHING, started=1.0, since=1.0))
    (tmp_path / f"{REPORT_NAME}.new").mkdir()
    code, report, _ = supervise(tmp_path, "print('up'); raise SystemExit(5)", lambda: ProbeResult.SILENT)
    assert (code, report.state) == (5, State.GAVE_UP)
    assert report.reason is not None
    assert report.reason.startswith("it never became ready")


def test_what_fails_before_it_is_ready_is_not_tried_again(tmp_path: Path) -> None:
    code, report, log = supervise(
        tmp_path, "print('up'); raise SystemExit(5)", lambda: ProbeResult.SILENT, as_json=False
    )
    assert (code, report.state, report.restarts) == (5, State.GAVE_UP, 0)
    assert "[error] given up: it never became ready" in log


def test_an_engine_whose_state_directory_was_removed_is_still_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart for a record that is gone would end whatever the healthy engine serves."""
    probe, asked = HealthProbe(), []
    monkeypatch.setattr(
        "tandem.service.supervisor.ask_health", lambda address, _s: (ProbeResult.OK, asked.append(address.url) or "")
    )
    record = ServiceRecord(pid=os.getpid(), url="http://127.0.0.1:8123", started=1.0, version="0")
    with lock_state_dir(tmp_path / "state"):
        assert probe(tmp_path / "state", os.getpid(), 1.0)[0] is ProbeResult.SILENT
        write_record(tmp_path / "state", record)
        assert probe(tmp_path / "state", os.getpid(), 1.0)[0] is ProbeResult.OK
        shutil.rmtree(tmp_path / "state")
        assert probe(tmp_path / "state", os.getpid(), 1.0)[0] is ProbeResult.OK
        assert probe(tmp_path / "state", os.getppid(), 1.0)[0] is ProbeResult.SILENT
    assert asked == ["http://127.0.0.1:8123"] * 2


def test_a_port_that_clients_have_filled_does_not_reach_the_probe(tmp_path: Path) -> None:
    """The record's port accepts nothing and answers nothing; the owner's socket does."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        owner_socket(tmp_path) as owner,
        served(ScriptedEngine(), ServiceConfig(), owner),
    ):
        assert owner is not None
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        record = ServiceRecord(pid=os.getpid(), url=url, started=1.0, version="0", socket=str(owner.path))
        with lock_state_dir(tmp_path):
            write_record(tmp_path, record)
            assert HealthProbe()(tmp_path, os.getpid(), LONG_S) == (ProbeResult.OK, "")


def test_a_good_end_is_an_end(tmp_path: Path) -> None:
    code, report, _ = supervise(tmp_path, "print('up')", lambda: ProbeResult.OK)
    assert (code, report.state) == (0, State.ENDED)


def test_a_signal_in_the_pause_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tandem.service.test_supervisor.QUICK", Policy(probe_s=0.05, pause_s=60.0))

    def paused() -> bool:
        report = read_report(tmp_path)
        return report is not None and report.last_cause is not None

    def wait() -> None:
        assert wait_until(paused)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait).start()
    script = watched(tmp_path) + "os.kill(os.getpid(), 9)"
    code, report, log = supervise(tmp_path, script, lambda: ProbeResult.OK)
    assert (code, report.state, report.restarts) == (0, State.ENDED, 1)
    assert log.count("up\n") == 1


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        (1, '{"event": "the model could not be loaded", "level": "error"}', "(the model could not be loaded)"),
        (1, "", "the engine ended with exit code 1"),
        (-9, "x", "the engine was ended by SIGKILL; the kernel does that when memory runs out"),
        (-11, "x", "the engine was ended by SIGSEGV"),
        (-99, "x", "the engine was ended by signal 99"),
    ],
)
def test_an_end_in_words(code: int, line: str, words: str) -> None:
    assert describe_end(code, line).endswith(words)


def test_a_supervisor_that_is_no_more_is_said_to_have_died(tmp_path: Path) -> None:
    report = Report(pid=7, engine_pid=8, state=State.WATCHING, started=1.0, since=1.0)
    write_report(tmp_path, report)
    died = read_report(tmp_path)
    assert died is not None
    assert died.state is State.DIED
    assert "process 7" in describe_report(died)
    with held(tmp_path / SUPERVISOR_LOCK):
        assert read_report(tmp_path) == report
