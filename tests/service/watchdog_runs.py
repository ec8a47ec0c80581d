"""Each history of the watchdog once, with a real engine under a real supervisor, as a table.

`python -m tests.service.watchdog_runs [--quick] [NAME...]`; with `--quick` the thresholds are a tenth. The history of a
load of 900 s is told on a fake clock alone (`tests/tandem/service/test_watchdog.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.process.state_dir import read_record
from tandem.service.supervisor_report import Report, State, read_report
from tandem.service.watchdog import Policy
from tests.service.conftest import ROOT, Box, make_box
from tests.service.test_background import open_stream
from tests.support.models import default_model

QUICK = Policy(
    probe_s=0.5,
    answer_s=6.0,
    pause_s=0.1,
    longest_pause_s=6.0,
    silent_load_s=180.0,
    silent_drain_s=12.0,
    healthy_s=12.0,
)
LIMIT_S = 300.0


@dataclass(frozen=True)
class Running:
    """A box with a supervisor at work on it."""

    box: Box
    policy: Policy
    supervisor: subprocess.Popen[bytes]
    model: Path

    @property
    def report(self) -> Report:
        report = read_report(self.box.state_dir)
        assert report is not None
        return report

    @property
    def engine(self) -> int:
        record = read_record(self.box.state_dir)
        assert record is not None
        return record.pid

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not wanted():
            assert time.monotonic() < deadline, self.report
            time.sleep(0.05)

    def restarted(self, times: int) -> None:
        self.until(lambda: self.report.restarts == times and self.report.state is State.WATCHING)


@contextmanager
def supervised(policy: Policy) -> Iterator[Running]:
    """An engine that is ready, under `policy`, with a model file of its own."""
    with tempfile.TemporaryDirectory(prefix="tandem-runs-") as folder:
        box = make_box(Path(folder))
        box.env["TANDEM_DRAIN_TIMEOUT"] = "8"
        model = Path(folder) / "model.gguf"
        shutil.copyfile(default_model(), model)
        words = ["--model", str(model), "--policy", msgspec.json.encode(policy).decode()]
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tandem.service", *words], env=box.env, cwd=ROOT, start_new_session=True
        )
        try:
            running = Running(box, policy, supervisor, model)
            running.until(lambda: read_report(box.state_dir) is not None and running.report.state is State.WATCHING)
            yield running
        finally:
            supervisor.terminate()
            try:
                supervisor.wait(30)
            except subprocess.TimeoutExpired:
                supervisor.kill()


def healthy(running: Running) -> str:
    time.sleep(6 * running.policy.probe_s)
    return "six probes"


def slow(running: Running) -> str:
    """Every answer takes 4 s: the engine is stopped for so long and then goes on."""
    for _ in range(4):
        os.kill(running.engine, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(running.engine, signal.SIGCONT)
        time.sleep(0.2)
    time.sleep(2 * running.policy.probe_s)
    return "stopped for 4 s, four times in a row"


def draining(running: Running) -> str:
    with open_stream(running.box, 900):
        os.kill(running.engine, signal.SIGTERM)
        running.until(lambda: running.supervisor.poll() is not None)
    return "SIGTERM to the engine alone, a stream open that outlasts the drain of 8 s"


def hung(running: Running) -> str:
    os.kill(running.engine, signal.SIGSTOP)
    running.restarted(1)
    return "SIGSTOP"


def crash(running: Running) -> str:
    os.kill(running.engine, signal.SIGKILL)
    running.restarted(1)
    return "SIGKILL"


def crash_loop(running: Running) -> str:
    with running.model.open("r+b") as file:
        file.truncate(1000)
    os.kill(running.engine, signal.SIGKILL)
    running.until(lambda: running.supervisor.poll() is not None)
    return "the model file cut short, then SIGKILL"


def recovered(running: Running) -> str:
    """A crash, a spell of health that is long enough, and a crash again: the pause is the first one."""
    os.kill(running.engine, signal.SIGKILL)
    running.restarted(1)
    time.sleep(running.policy.healthy_s + 2 * running.policy.probe_s)
    os.kill(running.engine, signal.SIGKILL)
    running.restarted(2)
    log = (running.box.state_dir / "engine.log").read_text()
    assert log.count(f"restarted in {running.policy.pause_s:g} s") == 2, log
    return "SIGKILL, well for long enough, SIGKILL: the first pause both times"


def orphaned(running: Running) -> str:
    engine = running.engine
    running.supervisor.kill()
    running.until(lambda: not Path(f"/proc/{engine}").exists())
    assert not (running.box.state_dir / "engine.json").exists(), "it did not end in order"
    return "SIGKILL to the supervisor: its engine ends in order"


@dataclass(frozen=True)
class Expected:
    play: Callable[[Running], str]
    state: State
    restarts: int


HISTORIES = {
    "healthy": Expected(healthy, State.WATCHING, 0),
    "slow": Expected(slow, State.WATCHING, 0),
    "draining": Expected(draining, State.ENDED, 0),
    "hung": Expected(hung, State.WATCHING, 1),
    "crash": Expected(crash, State.WATCHING, 1),
    "crash-loop": Expected(crash_loop, State.GAVE_UP, 5),
    "orphaned": Expected(orphaned, State.DIED, 0),
    "recovered": Expected(recovered, State.WATCHING, 2),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(HISTORIES))
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    wrong = 0
    print("| history | what happened | took | supervisor | restarts | why |\n|---|---|---|---|---|---|")
    for name, expected in HISTORIES.items():
        if asked.names and name not in asked.names:
            continue
        with supervised(QUICK if asked.quick else Policy()) as running:
            began = time.monotonic()
            done = expected.play(running)
            took = time.monotonic() - began
            report = running.report
        right = (report.state, report.restarts) == (expected.state, expected.restarts)
        wrong += not right
        why = report.reason or report.last_cause or ""
        said = "" if right else f" (expected {expected.state}, {expected.restarts})"
        print(f"| {name} | {done} | {took:.1f} s | {report.state}{said} | {report.restarts} | {why} |", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
