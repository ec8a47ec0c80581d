"""`tandem config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.cli import run
from tandem.exits import Exit
from tandem.settings.table import TABLE


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
    file = folders / "serve.env"
    assert capsys.readouterr().err.splitlines() == [
        f"tandem: {file}:1: TANDEM_PARALLEL is 'many'; allowed: a whole number from 1 to 1024",
        f"tandem: {file}:2: TANDEM_PORT is 'none'; allowed: a whole number from 0 to 65535",
    ]


def test_validate_says_every_problem_of_every_place(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "profiles").mkdir()
    (folders / "serve.env").write_text(
        "TANDEM_PARALLEL=\nTANDEM_PARALEL=4\nnonsense hunter2\nTANDEM_MODEL='open\nTANDEM_CONFIG_DIR=/x\n"
    )
    (folders / "local.env").write_text("QSE_PARALLEL=two\nTANDEM_PARALLEL=2\nPARALLEL=3\n")
    (folders / "profiles" / "mine.env").write_text("TANDEM_MAX_LEN=4.0\n")
    monkeypatch.setenv("TANDEM_PORT", " 4")
    monkeypatch.setenv("QSE_OF_ANOTHER_PROGRAM", "1")
    monkeypatch.setenv("TANDEM_QUEUE_LIMT", "1")
    assert run(["config", "validate", "--json"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    report = json.loads(captured.out)
    said = {(Path(p["file"] or "").name, p["line"], p["variable"], p["value"]) for p in report["problems"]}
    assert said == {
        ("", None, "TANDEM_PORT", " 4"),
        ("", None, "TANDEM_QUEUE_LIMT", None),
        ("serve.env", 2, "TANDEM_PARALEL", None),
        ("serve.env", 3, None, None),
        ("serve.env", 4, None, None),
        ("serve.env", 5, "TANDEM_CONFIG_DIR", None),
        ("local.env", 1, "QSE_PARALLEL", "two"),
        ("local.env", 3, "PARALLEL", None),
        ("mine.env", 1, "TANDEM_MAX_LEN", "4.0"),
    }
    hints = {p["variable"]: p["message"] for p in report["problems"]}
    assert "did you mean TANDEM_PARALLEL?" in hints["TANDEM_PARALEL"]
    assert "did you mean TANDEM_PARALLEL?" in hints["PARALLEL"]
    assert "did you mean TANDEM_QUEUE_LIMIT?" in hints["TANDEM_QUEUE_LIMT"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"serve.env": "TANDEM_PROFILE=nowhere\n"}, "no profile is named 'nowhere'"),
        ({"serve.env": "TANDEM_HOST=0.0.0.0\n"}, "there is no API key"),
        ({"serve.env": "TANDEM_PARALLEL_FLOOR_GB=1\nTANDEM_KV_HARD_FLOOR_GB=2\n"}, "is above"),
        ({"residency.toml": "[[role]]\nname = 3\n"}, "residency.toml"),
        ({"secrets.json": "{}"}, "mode 644"),
    ],
)
def test_validate_looks_at_what_the_values_lead_to(
    folders: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (folders / name).write_text(text)
        (folders / name).chmod(0o644)
    assert run(["config", "validate"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_token_that_others_can_read_is_a_warning(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folders / "local.env"
    file.write_text("TANDEM_ADMIN_TOKEN=hush-hush\n")
    file.chmod(0o644)
    assert run(["config", "validate"]) == Exit.OK
    err = capsys.readouterr().err
    assert f"{file}:1: TANDEM_ADMIN_TOKEN can be read by other users (mode 644); `chmod 600 {file}`" in err
    assert "hush-hush" not in err
    file.chmod(0o600)
    assert run(["config", "validate"]) == Exit.OK
    assert "can be read" not in capsys.readouterr().err


def test_profiles_are_listed_and_shown(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folders / "profiles" / "small.env"
    own.parent.mkdir()
    own.write_text("# Mine.\nTANDEM_PARALLEL=3\nTANDEM_ADMIN_TOKEN=hush-hush\n")
    assert run(["config", "profiles", "list", "--json"]) == Exit.OK
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(listed) == {"agents", "shared", "small"}
    assert (listed["small"]["own"], listed["small"]["about"]) == (True, "Mine.")
    assert not listed["agents"]["own"]
    assert run(["config", "profiles", "show", "small"]) == Exit.OK
    assert capsys.readouterr().out == "TANDEM_PARALLEL=3\nTANDEM_ADMIN_TOKEN=(set, not shown)\n"
    assert run(["config", "profiles", "show", "small", "--json"]) == Exit.OK
    assert "hush-hush" not in capsys.readouterr().out
    assert run(["config", "profiles", "show", "none"]) == Exit.USAGE


@pytest.mark.parametrize("flag", ["--profile", "--env-file"])
def test_an_empty_flag_is_no_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["config", "show"], ["config", "validate"]):
        assert run([*command, flag, ""]) == Exit.OK
