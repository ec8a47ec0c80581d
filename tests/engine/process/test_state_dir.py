"""The state directory: one holder at a time, known by its pid, and a record that is true or absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.process.state_dir import (
    RECORD_NAME,
    ServiceRecord,
    StateDirLocked,
    is_locked,
    lock_state_dir,
    read_record,
    remove_record,
    write_record,
)

RECORD = ServiceRecord(pid=1, url="http://127.0.0.1:8000", started=5.0, version="0.1.0")


def test_second_holder_is_refused_with_the_pid(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert not is_locked(folder)
    with lock_state_dir(folder):
        assert is_locked(folder)
        with pytest.raises(StateDirLocked, match="held by this process itself") as refused, lock_state_dir(folder):
            pass
        assert str(folder) in str(refused.value)
    assert not is_locked(folder)
    with lock_state_dir(folder):
        pass


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A holder that was killed leaves its file behind, and the directory is free."""
    code = (
        "import sys, os; from pathlib import Path; from engine.process.state_dir import lock_state_dir\n"
        "with lock_state_dir(Path(sys.argv[1])): print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "held\n"
    assert (tmp_path / "engine.lock").exists()
    assert not is_locked(tmp_path)
    with lock_state_dir(tmp_path):
        pass


def test_a_record_of_a_process_that_is_no_more_is_none(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with lock_state_dir(tmp_path):
        write_record(tmp_path, msgspec.structs.replace(RECORD, pid=gone.pid))
        assert read_record(tmp_path) is None


def test_record(tmp_path: Path) -> None:
    with lock_state_dir(tmp_path):
        assert read_record(tmp_path) is None
        write_record(tmp_path, RECORD)
        assert read_record(tmp_path) == RECORD
        assert [path.name for path in tmp_path.glob("*.json*")] == [RECORD_NAME]
    assert read_record(tmp_path) is None, "a record that nobody holds is no running engine"
    remove_record(tmp_path)
    remove_record(tmp_path)


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    with lock_state_dir(tmp_path):
        (tmp_path / RECORD_NAME).write_text("{")
        assert read_record(tmp_path) is None
