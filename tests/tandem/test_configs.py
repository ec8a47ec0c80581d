"""`tandem config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.cli import run
from tandem.exits import Exit
from tandem.settings import TABLE


def test_show_prints_every_setting_with_its_origin(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "local.env").write_text("QSE_PARALLEL=3\n")
    monkeypatch.setenv("TANDEM_PORT", "8123")
    assert run(["config", "show", "--origin"]) == Exit.OK
    captured = capsys.readouterr()
    lines = {line.partition("=")[0]: " ".join(line.split()) for line in captured.out.splitlines()}
    assert set(lines) == {setting.variable for setting in TABLE}
    assert lines["TANDEM_PORT"] == "TANDEM_PORT=8123 # environment"
    where = folders / "local.env"
    assert lines["TANDEM_PARALLEL"] == f"TANDEM_PARALLEL=3 # local.env ({where}:1), written as QSE_PARALLEL"
    assert "QSE_PARALLEL is an older name" in captured.err


def test_show_hides_secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_ADMIN_TOKEN", "hush-hush")
    assert run(["config", "show"]) == Exit.OK
    assert run(["config", "show", "--json"]) == Exit.OK
    captured = capsys.readouterr()
    assert "hush-hush" not in captured.out + captured.err


def test_show_json_is_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN38_PARALLEL_FLOOR_GB", "1.5")
    assert run(["config", "show", "--json"]) == Exit.OK
    shown = {row["variable"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(shown) == {setting.variable for setting in TABLE}
    floor = shown["TANDEM_PARALLEL_FLOOR_GB"]
    assert (floor["value"], floor["unit"], floor["alias"]) == (3 << 29, "bytes", True)


def test_init_writes_once_and_validate_accepts_it(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init"]) == Exit.OK
    serve = folders / "serve.env"
    assert serve.exists()
    assert (folders / "profiles" / "agents.env").exists()
    serve.write_text("TANDEM_PARALLEL=2\n")
    assert run(["config", "init"]) == Exit.OK
    assert serve.read_text() == "TANDEM_PARALLEL=2\n"
    assert run(["config", "init", "--force"]) == Exit.OK
    assert serve.read_text() != "TANDEM_PARALLEL=2\n"
    assert run(["config", "validate"]) == Exit.OK
    assert capsys.readouterr().out == ""


def test_validate_finds_what_a_stronger_layer_hides(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "serve.env").write_text("TANDEM_PARALLEL=many\nTANDEM_PORT=none\n")
    monkeypatch.setenv("TANDEM_PARALLEL", "2")
    monkeypatch.setenv("TANDEM_PORT", "8001")
    assert run(["config", "show"]) == Exit.OK
    assert run(["config", "validate"]) == Exit.USAGE
    wrong = capsys.readouterr().err.splitlines()
    assert [line.split(" is ")[0] for line in wrong] == ["tandem: TANDEM_PARALLEL", "tandem: TANDEM_PORT"]
