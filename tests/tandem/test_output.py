"""What reaches a terminal and a pipe."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pexpect
import pytest

from tandem import output
from tandem.exits import Exit
from tandem.reference import ROOT
from tests.support.fake_health import SCENES, FakeHealth
from tests.support.gguf_files import write_tiny_llama
from tests.support.patience import LONG_S


@dataclass(frozen=True)
class Printed:
    """The exit codes of a series of commands, and what they left on both streams."""

    codes: list[int]
    out: bytes
    err: bytes


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


COMMANDS_THAT_PRINT = (
    ["--version"],
    ["--help"],
    ["serve", "--help"],
    ["models", "list"],
    ["models", "inspect", "MODEL"],
    ["config", "show", "--origin"],
    ["doctor"],
    ["usage"],
    ["residency", "plan", "--dry-run"],
    ["residency", "plan", "--dry-run", "--json"],
    ["completion", "bash"],
    ["status"],
    ["logs"],
    ["status", "--url", "URL"],
    ["status", "--url", "URL", "--json"],
    ["console", "--once", "--url", "URL"],
    ["console", "--once", "--json", "--url", "URL"],
)
EACH = """
import json, os, sys
from tandem import cli, output
output.own_streams()
codes = []
for args in json.loads(sys.argv[1]):
    codes.append(cli.run(args))
    output.note("#")
output.finish()
with open(sys.argv[2], "w") as told:
    json.dump(codes, told)
"""
UTF8 = {"PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def printing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Printed]]:
    """Runs every command that prints, in one process, with its streams as the shell's words `redirected` leave them."""
    folder = tmp_path_factory.mktemp("printing")
    model = folder / "model.gguf"
    write_tiny_llama(model)
    with FakeHealth(SCENES["waiting"]) as engine:
        commands = [
            [{"URL": engine.url, "MODEL": str(model)}.get(word, word) for word in words]
            for words in COMMANDS_THAT_PRINT
        ]

        def run(redirected: str, environ: dict[str, str]) -> Printed:
            told = folder / "codes"
            script = f'exec "$@" {redirected}'
            done = subprocess.run(
                ["bash", "-c", script, "bash", sys.executable, "-c", EACH, json.dumps(commands), str(told)],
                capture_output=True,
                cwd=ROOT,
                env=dict(os.environ) | {"XDG_STATE_HOME": str(folder), "COLUMNS": "100"} | environ,
                timeout=LONG_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return Printed(json.loads(told.read_text()), done.stdout, done.stderr)

        yield run


@pytest.fixture(scope="module")
def usual(printing: Callable[..., Printed]) -> Printed:
    """What they print to a pipe in UTF-8."""
    return printing("", UTF8)


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1"),
        pytest.param({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, id="C"),
    ],
)
def test_every_command_prints_in_every_locale(
    printing: Callable[..., Printed], usual: Printed, environ: dict[str, str]
) -> None:
    here = printing("", environ)
    assert here.codes == usual.codes
    assert b"Traceback" not in here.err
    assert here.out.count(b"smollm2") == usual.out.count(b"smollm2") > 0
    if "LC_ALL" in environ and "PYTHONUTF8" in environ:
        assert here.out.isascii()
        assert b"+- lanes " in here.out, "frames are drawn in ASCII, cell for cell"


@pytest.mark.parametrize(
    ("redirected", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_a_stdout_that_takes_nothing_is_one_line_and_an_exit_code(
    printing: Callable[..., Printed], usual: Printed, redirected: str, why: str
) -> None:
    here = printing(redirected, UTF8)
    prints = [code == Exit.OK for code in usual.codes]
    assert here.codes == [Exit.FAILURE if ok else code for code, ok in zip(usual.codes, prints, strict=True)]
    told = [words.strip() for words in here.err.decode().split("#\n")[:-1]]
    for ok, words in zip(prints, told, strict=True):
        assert words.endswith(f"tandem: standard output: {why}" if ok else words)
        assert words.count("standard output") == ok
    assert b"Traceback" not in here.err


def test_a_stderr_that_takes_nothing_is_done_without(printing: Callable[..., Printed], usual: Printed) -> None:
    here = printing("2>/dev/full", UTF8)
    assert (here.codes, here.err) == (usual.codes, b"")
    assert here.out.count(b"smollm2") == usual.out.count(b"smollm2") > 0


def test_without_any_stream_there_is_still_an_exit_code(printing: Callable[..., Printed]) -> None:
    here = printing(">&- 2>&- <&-", UTF8)
    assert set(here.codes) <= {Exit.FAILURE, Exit.NOT_RUNNING}
    assert (here.out, here.err) == (b"", b"")


def test_the_interpreter_ends_without_a_word_of_its_own() -> None:
    """What stayed in a buffer is not tried again at its end, which would change the exit code to 120."""
    line = f"{sys.executable} -m tandem --version >/dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (1, "tandem: standard output: No space left on device\n")


def test_a_stream_that_cannot_spell_a_letter_gets_its_escape() -> None:
    code = "from tandem import output; output.own_streams(); output.emit('caf\\u00e9 \\u2026'); output.finish()"
    env = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
    assert done.stdout == b"caf\\xe9 ~\n"


def test_a_reader_that_goes_ends_the_command_without_a_traceback() -> None:
    line = f"{sys.executable} -m tandem config show | head -n 1"
    child = pexpect.spawn("bash", ["-c", line], encoding="utf-8", cwd=str(ROOT))
    child.expect(pexpect.EOF)
    child.close()
    assert child.before.splitlines() == ["TANDEM_MODEL=smollm2-135m"]
