"""One supervisor a port and a state directory, and no engine that outlives its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.exits import CommandError, Exit
from tandem.service.claims import check_unclaimed, claimed
from tests.support.scripted_engine import wait_until


def test_one_supervisor_a_port_and_a_state_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with claimed(8123, one):
        for port, folder, words in ((8123, two, "port 8123 is held by"), (8124, one, f"{one} is held by")):
            with pytest.raises(CommandError, match=words) as refused, claimed(port, folder):
                pass
            assert refused.value.code == Exit.REFUSED
        with claimed(8124, two):
            pass
    check_unclaimed(8123, one)


def test_any_free_port_is_nobodys(tmp_path: Path) -> None:
    with claimed(0, tmp_path / "one"), claimed(0, tmp_path / "two"):
        pass


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    child = "import os, time; from tandem.service.claims import end_with; end_with(os.getppid()); " + (
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    running = subprocess.Popen([sys.executable, "-c", parent])
    assert wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() != "")
    pid = int((tmp_path / "child").read_text())
    running.kill()
    running.wait()
    assert wait_until(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_child_whose_parent_is_gone_already_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.service import claims

    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(claims.ctypes, "CDLL", lambda *_args, **_more: _Libc())
    monkeypatch.setattr(claims.os, "getppid", lambda: 1)
    monkeypatch.setattr(claims.os, "kill", lambda pid, number: sent.append((pid, number)))
    claims.end_with(1)
    assert not sent
    claims.end_with(1000)
    assert sent == [(os.getpid(), signal.SIGTERM)]


class _Libc:
    def prctl(self, *_words: int) -> int:
        return 0
