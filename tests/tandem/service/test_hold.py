"""`tandem hold` where no engine runs: the command's own life, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.process.state_dir import held
from tandem.cli import run
from tandem.exits import CommandError, Exit
from tandem.service import hold
from tandem.service.claims import check_unclaimed, hold_lock
from tandem.service.hold import Note, describe_hold, read_note, restore_after_crash, write_note
from tests.support.lock_holder import held_elsewhere
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until


def test_nothing_is_stopped_for_a_command_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "running", lambda: pytest.fail("it went on"))
    assert run(["hold", "1", "--", "/no/such/command"]) == 127
    assert run(["hold", "1", "--", "/etc/passwd"]) == 126


@pytest.mark.parametrize("minutes", ["inf", "1e300", "525601", "nan", "0"])
def test_a_time_that_no_clock_shows_is_refused(
    minutes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hold, "running", lambda: pytest.fail("it went on"))
    assert run(["hold", minutes, "--", "true"]) == Exit.USAGE
    assert f"is '{minutes}'; allowed: " in capsys.readouterr().err


def test_the_end_of_a_long_hold_has_its_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hold", "2000", "--", "true"]) == 0
    assert re.search(r"until [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8} at", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
    ],
)
def test_the_exit_code_is_the_commands(words: list[str], code: int) -> None:
    assert run(["hold", "1", "--", *words]) == code
    assert read_note() is None


def test_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the command started ends with it, what does not listen too."""
    monkeypatch.setattr(hold, "GRACE_S", 0.3)
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 60 & echo $! > {pids}; sleep 60"
    assert run(["hold", "0.01", "--", "sh", "-c", script]) == hold.TIMED_OUT_EXIT
    assert not alive(int(pids.read_text()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("number", "code", "send"),
    [(signal.SIGTERM, 143, os.kill), (signal.SIGHUP, 129, os.kill), (signal.SIGINT, 130, os.killpg)],
)
def test_a_signal_ends_the_command(
    tmp_path: Path, number: signal.Signals, code: int, send: Callable[[int, int], None]
) -> None:
    """Ctrl-C goes to all of the terminal's group, a signal to the hold alone."""
    begun = tmp_path / "begun"
    # A shell loses a signal that comes while it starts its next command.
    script = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    words = [sys.executable, "-m", "tandem", "hold", "1", "--", sys.executable, "-c", script]
    with ended(subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)) as holding:
        assert wait_until(begun.exists)
        send(holding.pid, number)
        assert holding.wait(LONG_S) == code


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone after the block, also where the test fails in it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("signals", [[signal.SIGHUP], [signal.SIGINT, signal.SIGHUP, signal.SIGINT]])
def test_a_signal_while_the_command_is_being_started_is_not_missed(signals: list[int]) -> None:
    assert hold._run(["sleep", "60"], 10.0, signals) == 129


def test_what_is_started_after_the_warning_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "GRACE_S", 0.3)
    pids = tmp_path / "pids"
    script = f"trap 'sleep 60 & echo $! > {pids}; wait' TERM; while :; do sleep 0.05; done"
    assert run(["hold", "0.01", "--", "sh", "-c", script]) == hold.TIMED_OUT_EXIT
    assert not alive(int(pids.read_text()))


def test_one_hold_at_a_time_and_no_engine_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(hold_lock()):
        assert run(["hold", "1", "true"]) == Exit.REFUSED
        check_unclaimed(0, tmp_path)
    # Whoever descends from the hold may: its command may bring an engine of its own.
    with held_elsewhere(hold_lock()) as pid, pytest.raises(CommandError, match=f"held by process {pid}"):
        check_unclaimed(0, tmp_path)


def note_of(pid: int, since: float, folder: Path) -> Note:
    return Note(
        pid=pid, since=since, until=since + 60, command="make bench", state_dirs=[str(folder)], units=["x.service"]
    )


def test_what_a_hold_left_is_said(tmp_path: Path) -> None:
    assert describe_hold() is None
    write_note(note_of(os.getpid(), time.time() + 1, tmp_path))
    assert "is starting again" in str(describe_hold())
    with held(hold_lock()):
        assert f"the box is held by process {os.getpid()} until" in str(describe_hold())
    # A process that began after the note was written is another one with the same number.
    write_note(note_of(os.getpid(), 1.0, tmp_path))
    said = str(describe_hold())
    assert "ended without starting again" in said
    assert str(tmp_path) in said
    assert "make bench" in said


def test_what_cannot_be_started_again_stays_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not restore_after_crash(1.0)
    write_note(note_of(os.getpid(), 1.0, tmp_path))
    with pytest.raises(CommandError, match="not all of it"):
        restore_after_crash(1.0)
    assert read_note() is not None
    assert "did not start again" in capsys.readouterr().err
