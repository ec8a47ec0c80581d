"""The systemd unit: what it says, that systemd accepts it, and the commands around it over a scripted systemctl."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import CLOSING_S
from tandem.cli import run
from tandem.exits import CommandError, Exit
from tandem.service import unit
from tandem.service.unit import UnitFacts, environment_text, quoted, render

FACTS = UnitFacts(
    name="tandem",
    command=[sys.executable, "-m", "tandem", "serve", "--model=/models/with space/50%/a$b.gguf", "--port=8123"],
    folder=Path("/tmp"),
    environment_file=Path("/tmp/my settings/tandem.unit.env"),
    port=8123,
    state_dir=Path("/tmp/state"),
    drain_s=30.0,
    systemd=252,
)


def values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_what_it_says() -> None:
    said = values(render(FACTS))
    assert said["Type"] == "notify"
    assert said["ExecStart"].endswith('serve "--model=/models/with space/50%%/a$$b.gguf" --port=8123')
    assert int(said["TimeoutStopSec"]) > FACTS.drain_s + CLOSING_S
    assert said["EnvironmentFile"] == "-/tmp/my settings/tandem.unit.env"
    assert (said["Restart"], said["RestartPreventExitStatus"]) == ("on-failure", f"{Exit.USAGE:d} {Exit.REFUSED:d}")
    assert "{" not in render(FACTS).replace("{name}", "")


def test_pauses_grow_where_systemd_can() -> None:
    assert "RestartSteps" not in render(FACTS)
    assert "RestartSteps=5" in render(replace(FACTS, systemd=256))
    assert "RestartSteps" not in render(replace(FACTS, systemd=None))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_it(tmp_path: Path) -> None:
    path = tmp_path / "tandem.service"
    path.write_text(render(replace(FACTS, systemd=unit.systemd_version())))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--port=80", "--port=80"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", "back\\\\slash"),
        ("$HOME", "$$HOME"),
        ("50%", "50%%"),
        ("a;b", '"a;b"'),
        ("it's", '"it\'s"'),
    ],
)
def test_a_word_of_the_command(word: str, said: str) -> None:
    assert quoted(word) == said


def test_a_line_cannot_be_smuggled_in() -> None:
    with pytest.raises(CommandError):
        quoted("x\nExecStartPre=/bin/evil")
    with pytest.raises(CommandError):
        environment_text({"TANDEM_MODEL": "x\ny"})
    with pytest.raises(CommandError):
        render(replace(FACTS, environment_file=Path("/tmp/a\nb")))


def test_a_settings_file_for_systemd() -> None:
    assert environment_text({"TANDEM_B": 'a "b" $c', "TANDEM_A": "1"}) == ('TANDEM_A="1"\nTANDEM_B="a \\"b\\" \\$c"\n')


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is asked; its answers lie in `state`. Returns the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {folder}/calls\n'
        'case "$*" in\n'
        '  --version) echo "systemd 252 (252.1)";;\n'
        f"  *is-active*) cat {folder}/state;;\n"
        "  *is-enabled*) echo enabled;;\n"
        "  *is-system-running*) echo running;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    (folder / "state").write_text("inactive\n")
    (folder / "calls").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home-config"))
    monkeypatch.setattr(unit, "lingers", lambda: False)
    return folder


def calls(systemctl: Path) -> list[str]:
    return (systemctl / "calls").read_text().splitlines()


def test_a_dry_run_writes_nothing(systemctl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "install", "--user", "--dry-run", "--port", "8123"]) == Exit.OK
    assert "ExecStart=" in capsys.readouterr().out
    assert unit.installed() == []


def test_install_show_and_uninstall(
    systemctl: Path, folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_ADMIN_TOKEN", "not for others")
    assert run(["service", "install", "--user", "--port", "8123"]) == Exit.OK
    told = capsys.readouterr().err
    assert "systemctl --user enable --now tandem.service" in told
    assert "enable-linger" in told
    settings = folders / "tandem.unit.env"
    assert 'TANDEM_ADMIN_TOKEN="not for others"' in settings.read_text()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    (found,) = unit.installed()
    assert (found.name, found.port) == ("tandem", 8123)
    assert run(["service", "show", "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["active"], shown["enabled"], shown["linger"]) == ("inactive", "enabled", False)
    assert "not for others" not in shown["unit"]
    assert run(["service", "uninstall"]) == Exit.OK
    assert (unit.installed(), settings.exists()) == ([], False)
    assert calls(systemctl)[-2:] == ["--user is-system-running", "--user daemon-reload"]
    for words in ("show", "uninstall"):
        assert run(["service", words]) == Exit.NOT_RUNNING


def test_enable_starts_it(systemctl: Path) -> None:
    assert run(["service", "install", "--name", "small", "--enable"]) == Exit.OK
    assert calls(systemctl)[-2:] == ["--user daemon-reload", "--user enable --now small.service"]


def test_a_unit_of_another_hand_is_left_alone(systemctl: Path) -> None:
    path = unit.unit_path("tandem")
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/true\n")
    assert run(["service", "install"]) == Exit.REFUSED
    assert path.read_text() == "[Service]\nExecStart=/bin/true\n"


@pytest.mark.parametrize("name", ["../evil", "a b", "", "x.service"])
def test_a_name_that_is_none(systemctl: Path, name: str) -> None:
    assert run(["service", "install", "--name", name]) == Exit.USAGE


def test_start_is_refused_while_the_unit_runs_or_pauses(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["service", "install", "--port", "8123", "--state-dir", str(tmp_path / "unit")]) == Exit.OK
    for state in ("active", "activating"):
        (systemctl / "state").write_text(f"{state}\n")
        assert run(["start", "--port", "8123", "--state-dir", str(tmp_path / "other")]) == Exit.REFUSED
        assert f"the systemd unit tandem runs the engine of port 8123 ({state})" in capsys.readouterr().err
        assert run(["start", "--port", "0", "--state-dir", str(tmp_path / "unit")]) == Exit.REFUSED
