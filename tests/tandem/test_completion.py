"""Shell completion: what may follow the words typed so far, and the bash script run by a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.cli import COMMANDS, run
from tandem.completion import FILES, complete
from tandem.exits import Exit
from tandem.reference import ROOT


def values(*typed: str) -> list[str]:
    return [candidate.value for candidate in complete(typed)]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["comp"], ["completion"]),
        (["nothing-like-it"], []),
        (["--ver"], ["--version"]),
        (["serve", "--par"], ["--parallel", "--parallel-floor-gb"]),
        (["serve", "--parallel", "4", "--side"], ["--side-max-len"]),
        (["serve", "--kv-pool", ""], ["on", "off"]),
        (["serve", "--kv-pool=o"], ["--kv-pool=on", "--kv-pool=off"]),
        (["serve", "--kv-pool", "=", "of"], ["off"]),
        (["serve", "--kv-pool", "="], ["on", "off"]),
        (["serve", "--device", "c"], ["cpu", "cuda"]),
        (["serve", "--model", "smol"], ["smollm2-135m", FILES]),
        (["serve", "--profile", ""], ["agents", "mine", "shared", "small"]),
        (["serve", "--parallel", ""], []),
        (["serve", "--env-file", ""], [FILES]),
        (["models", ""], ["list", "pull", "inspect"]),
        (["models", "pull", "qwen"], ["qwen2.5-coder-1.5b"]),
        (["config", "profiles", "show", "m"], ["mine"]),
        (["config", "profiles", ""], ["list", "show"]),
        (["residency", "load", ""], ["decider", "narrator", "shadow-reader"]),
        (["secrets", "rotate", ""], ["admin", "metrics"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["bench", "c1", "--own", "c"], ["c1", "c2", "c4", "c8"]),
        (["check", "batch", "--", "--js"], []),
        ([], list(COMMANDS)),
        ([""], list(COMMANDS)),
    ],
)
def test_what_may_follow(folders: Path, typed: list[str], found: list[str]) -> None:
    (folders / "profiles").mkdir()
    (folders / "profiles" / "mine.env").write_text("TANDEM_PARALLEL=2\n")
    assert values(*typed) == found


def test_every_command_takes_help() -> None:
    for name in COMMANDS:
        assert "--help" in values(name, "--h")


def test_a_broken_file_completes_nothing(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "residency.toml").write_text("[[role]\n")
    (folders / "secrets.json").write_text("{")
    assert values("residency", "load", "") == []
    assert values("secrets", "rotate", "") == ["admin", "metrics"]
    (folders / "serve.env").write_text("TANDEM_PARALLEL=many\n")
    assert values("residency", "load", "") == []
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A folder with a `tandem` to be found first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "tandem"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tandem "$@"\n')
    script.chmod(0o755)
    return folder


def in_bash(shim: Path, cwd: Path, *lines: tuple[str, ...]) -> list[list[str]]:
    """What bash offers for the last word of each line."""
    script = "source <(tandem completion bash) && complete -p tandem >/dev/null || exit 9\n"
    script += f"cd {shlex.quote(str(cwd))}\n"
    for words in lines:
        typed = " ".join(shlex.quote(word) for word in ("tandem", *words))
        script += f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _tandem; "
        script += 'printf "%s\\n" "${COMPREPLY[@]}" --\n'
    env = os.environ | {"PATH": f"{shim}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [part.split("\n") for part in done.stdout.removesuffix("\n--\n").split("\n--\n")]


def test_a_real_bash_completes(shim: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.gguf").touch()
    (tmp_path / "smol.gguf").touch()
    assert in_bash(
        shim,
        tmp_path,
        ("models", "inspect", "smol"),
        ("models", "inspect", "two"),
        ("config", "show", "--profile", "=", "s"),
    ) == [["smollm2-135m", "smol.gguf"], ["two words.gguf"], ["shared", "small"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_asks_the_command_itself(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == Exit.OK
    script = capsys.readouterr().out
    assert "completion words -- " in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)
