"""The command table and the exit codes of misuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.models.catalog import BUILT_IN, DEFAULT_MODEL
from tandem.cli import COMMANDS, run
from tandem.exits import Exit


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == Exit.OK
    out = capsys.readouterr().out
    for name, spec in COMMANDS.items():
        assert f"  {name} " in out
        assert spec.help in out


@pytest.mark.parametrize(
    "args",
    [
        ["nothing-like-it"],
        ["--hlep"],
        ["serve", "--parallel"],
        ["serve", "--parallel", "0"],
        ["serve", "--parallel", " 4"],
        ["serve", "--kv-pool", "maybe"],
        ["serve", "--host", "0.0.0.0"],
        ["serve", "--host", "192.168.1.2"],
        ["serve", "--profile", "nowhere"],
        ["serve", "--env-file", "/nonexistent/file.env"],
        ["bench", "c0"],
        ["bench", "4"],
        ["bench", "c1", "exact"],
        ["bench", "prices"],
        ["bench", "--prompts", "/nonexistent/prompts"],
        ["bench", "--out", "/nonexistent/report", "--url", "http://127.0.0.1:9"],
        ["bench", "--url", "ftp://box", "c1"],
        ["chat", "", "--url", "http://127.0.0.1:9"],
        ["status", "--url", "http://127.0.0.1:port"],
    ],
)
def test_misuse_exits_2_with_one_message(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip()
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "args",
    [
        ["status"],
        ["stop"],
        ["logs"],
        ["restart"],
        ["chat", "hello"],
        ["status", "--url", "http://127.0.0.1:9"],
        ["console", "--once"],
        ["bench", "c1", "--url", "http://127.0.0.1:9"],
        ["check", "batch", "--url", "http://127.0.0.1:9"],
    ],
)
def test_nothing_running_exits_3(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "9")
    assert run(args) == Exit.NOT_RUNNING
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["stop", "--timeout", "-1"], ("--timeout", "'-1'", "at least 0", "tandem stop --help")),
        (["stop", "--timeout", "soon"], ("--timeout", "'soon'", "a valid number")),
        (["check", "batch", "--parallel", "1"], ("--parallel", "'1'", "at least 2", "tandem check batch --help")),
        (["usage", "--by", "hour"], ("--by is 'hour'; allowed: day, client, model (see", "tandem usage --help")),
        (["console", "--web", "--web-port", "99999"], ("--web-port", "'99999'", "at most 65535")),
        (["logs", "-n", "x"], ("--lines/-n", "'x'", "a valid integer")),
        (["serve", "--hots", "h"], ("--hots", "tandem serve --help")),
        (["serve", "--port"], ("--port", "requires an argument")),
        (["models", "inspect"], ("PATH|NAME", "tandem models inspect --help")),
    ],
)
def test_misuse_is_one_line_that_names_flag_value_and_limit(
    args: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == Exit.USAGE
    err = capsys.readouterr().err
    assert err.startswith("tandem: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_a_model_that_cannot_run_is_refused_before_it_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    name = DEFAULT_MODEL
    refused = replace(BUILT_IN[name], refusal="its forms cannot be run yet")
    monkeypatch.setattr("engine.models.catalog.BUILT_IN", {name: refused})
    assert run(["serve", "--port", "0", "--state-dir", str(tmp_path / "state"), "--model", name]) == Exit.FAILURE
    err = capsys.readouterr().err
    assert f"{name} cannot be served: its forms cannot be run yet" in err
    assert "fetching" not in err


def test_the_console_wants_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--url", "http://127.0.0.1:9"]) == Exit.USAGE
    assert "--once" in capsys.readouterr().err


def test_a_group_without_a_word_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: tandem models")


def test_a_typo_names_the_near_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["statsu"]) == Exit.USAGE
    assert "'status'" in capsys.readouterr().err


def test_the_flag_and_the_variable_are_refused_in_the_same_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["serve", "--queue-limit=4.0"]) == Exit.USAGE
    monkeypatch.setenv("TANDEM_QUEUE_LIMIT", "4.0")
    assert run(["serve"]) == Exit.USAGE
    flag, variable = capsys.readouterr().err.splitlines()
    assert flag == "tandem: --queue-limit is '4.0'; allowed: a whole number from 0 to 1000000000"
    assert variable == "tandem: TANDEM_QUEUE_LIMIT is '4.0'; allowed: a whole number from 0 to 1000000000"


def test_a_held_port_is_refused_before_a_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.process.listening import bind

    listening = bind("127.0.0.1", 0)
    try:
        assert run(["serve", "--model", "no-such-model", "--port", str(listening.port)]) == Exit.REFUSED
    finally:
        listening.close()
    assert f"port {listening.port}" in capsys.readouterr().err


def test_a_held_state_directory_is_refused_before_a_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.process.state_dir import lock_state_dir

    folder = tmp_path / "held"
    with lock_state_dir(folder):
        code = run(["serve", "--model", "no-such-model", "--port", "0", "--state-dir", str(folder)])
    assert code == Exit.REFUSED
    assert str(folder) in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/proc/nowhere", "a file/engine"])
def test_a_state_directory_that_cannot_be_is_one_line(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").touch()
    there = str(tmp_path / folder)
    assert run(["serve", "--port", "0", "--model", "nowhere", "--state-dir", there]) == Exit.USAGE
    assert capsys.readouterr().err.startswith(f"tandem: the state directory {there} cannot be used: ")
