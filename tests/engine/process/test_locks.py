"""Lock files: which process is named as the holder, and which never is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.process.listening import PortInUse
from engine.process.locks import UNKNOWN, Held, held, holder, is_held
from engine.process.state_dir import StateDirLocked
from tests.support.lock_holder import held_elsewhere


def refusal(path: Path) -> tuple[str, int | None]:
    with pytest.raises(Held) as refused, held(path):
        pass
    return str(refused.value), refused.value.pid


def test_the_holder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert holder(path) is None
    with held_elsewhere(path) as pid:
        assert holder(path) == pid
        assert refusal(path) == (f"{path} is held by process {pid}", pid)
    assert holder(path) is None
    assert not is_held(path)


@pytest.mark.parametrize("written", ["own pid", "a process that lives", "a process that has gone", "nothing"])
def test_a_pid_in_the_file_that_is_not_the_holders_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """As after a crash, where the number lives on or came back, on a full disk, and in a container that shares the
    directory. The kernel knows better, unless the holder lives elsewhere."""
    path = tmp_path / "a.lock"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pids = {"own pid": os.getpid(), "a process that lives": os.getppid(), "a process that has gone": gone.pid}
    with held_elsewhere(path) as pid:
        path.write_text(f"{pids[written]}\n" if written in pids else "")
        assert holder(path) == pid
        monkeypatch.setattr("engine.process.locks._locked_by", lambda _: None)
        assert holder(path) == UNKNOWN
        assert refusal(path) == (f"{path} is held by another process", None)


def test_a_lock_holds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid cannot be written; what the file said before is not believed."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.lock"
    path.write_text(f"{os.getppid()}\n")
    monkeypatch.setattr("engine.process.locks.write_over", full)
    with held(path):
        assert path.read_text() == f"{os.getppid()}\n"
        assert holder(path) == os.getpid()


def test_a_process_that_holds_it_twice_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with held(path):
        words, _ = refusal(path)
    assert words == f"{path} is held by this process itself"


@pytest.mark.parametrize("error", [StateDirLocked(Path("x"), os.getpid()), PortInUse("::1", 1, os.getpid())])
def test_no_sentence_names_the_process_that_asks(error: Exception) -> None:
    assert "held by this process itself" in str(error)
    assert str(os.getpid()) not in str(error)
