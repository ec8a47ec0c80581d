"""What reaches a terminal and a pipe."""

from __future__ import annotations

import io
import subprocess
import sys

import pexpect
import pytest

from tandem import output
from tandem.reference import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    output.emit("a\x1b[2Jb\x07\tc\u009b1m é")
    assert screen.getvalue() == "a\ufffd[2Jb\ufffd\tc\ufffd1m é\n"


def test_a_pipe_gets_the_bytes_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("a\x1b[1m")
    assert capsys.readouterr().out == "a\x1b[1m\n"


def test_a_stream_that_cannot_spell_a_letter_gets_its_escape() -> None:
    code = "from tandem import output; output.emit('caf\\u00e9')"
    env = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
    assert done.stdout == b"caf\\xe9\n"


def test_a_reader_that_goes_ends_the_command_without_a_traceback() -> None:
    line = f"{sys.executable} -m tandem config show | head -n 1"
    child = pexpect.spawn("bash", ["-c", line], encoding="utf-8", cwd=str(ROOT))
    child.expect(pexpect.EOF)
    child.close()
    assert child.before.splitlines() == ["TANDEM_MODEL=smollm2-135m"]
