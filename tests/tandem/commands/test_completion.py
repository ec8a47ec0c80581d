"""Shell completion: what may follow the words typed so far, and the bash script run by a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.cli import COMMANDS, COMPLETE_VARIABLE, complete, run
from tandem.exits import Exit
from tandem.reference import ROOT


def values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *typed: str) -> list[str]:
    """What may stand in the place of the last word."""
    monkeypatch.setenv("COMP_WORDS", shlex.join(["tandem", *typed]) if typed[-1] else " ".join(["tandem", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    assert complete("complete_bash") == Exit.OK
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.split()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["comp"], ["completion"]),
        (["nothing-like-it"], []),
        (["--ver"], ["--version"]),
        (["serve", "--par"], ["--parallel", "--parallel-floor-gb"]),
        (["serve", "--parallel", "4", "--side"], ["--side-max-len"]),
        (["serve", "--kv-pool", ""], ["on", "off"]),
        (["serve", "--device", "c"], ["cpu", "cuda"]),
        (["serve", "--model", "smol"], ["smollm2-135m"]),
        (["serve", "--profile", ""], ["agents", "mine", "shared", "small"]),
        (["serve", "--parallel", ""], []),
        (["models", ""], ["list", "pull", "inspect"]),
        (["models", "pull", "qwen"], ["qwen2.5-coder-1.5b"]),
        (["config", "profiles", "show", "m"], ["mine"]),
        (["residency", "load", ""], ["decider", "narrator", "shadow-reader"]),
        (["secrets", "rotate", ""], ["admin", "metrics"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["bench", "c1", "--own", "c"], ["c1", "c2", "c4", "c8"]),
        ([""], list(COMMANDS)),
    ],
)
def test_what_may_follow(
    folders: Path,
    typed: list[str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folders / "profiles").mkdir()
    (folders / "profiles" / "mine.env").write_text("TANDEM_PARALLEL=2\n")
    assert values(monkeypatch, capsys, *typed) == found


def test_a_broken_file_completes_nothing(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders / "residency.toml").write_text("[[role]\n")
    (folders / "secrets.json").write_text("{")
    assert values(monkeypatch, capsys, "residency", "load", "") == []
    assert values(monkeypatch, capsys, "secrets", "rotate", "") == ["admin", "metrics"]
    (folders / "serve.env").write_text("TANDEM_PARALLEL=many\n")
    assert values(monkeypatch, capsys, "residency", "load", "") == []


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A folder with a `tandem` to be found first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "tandem"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tandem "$@"\n')
    script.chmod(0o755)
    return folder


def test_a_real_bash_completes(shim: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.gguf").touch()
    script = """source <(tandem completion bash) && complete -p tandem >/dev/null || exit 9
COMP_WORDS=(tandem models inspect smol); COMP_CWORD=3; _tandem_completion tandem; echo "${COMPREPLY[@]}"
COMP_WORDS=(tandem models inspect two); COMP_CWORD=3; _tandem_completion tandem; echo "${#COMPREPLY[@]}"
"""
    env = os.environ | {"PATH": f"{shim}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    # Where nothing of ours fits, bash completes paths (`complete -o default`).
    assert (done.stdout, done.stderr) == ("smollm2-135m\n0\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_asks_the_command_itself(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == Exit.OK
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}=complete_{shell}" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)
