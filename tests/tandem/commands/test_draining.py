"""`tandem drain` and `tandem resume`, against a served engine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from engine.config import ServiceConfig
from tandem.cli import run
from tandem.exits import Exit
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import Served, served

TOKEN = "admin-key"


@pytest.fixture(scope="module")
def scripted() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def place(scripted: ScriptedEngine) -> Iterator[Served]:
    with served(scripted, ServiceConfig(admin_token=TOKEN)) as running:
        yield running


@pytest.fixture
def engine(scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted.reset()
    monkeypatch.setenv("TANDEM_ADMIN_TOKEN", TOKEN)
    # Which only reads, so it must not be what is sent.
    monkeypatch.setenv("TANDEM_METRICS_TOKEN", "other")
    return scripted


def test_an_engine_is_drained_and_serves_again(
    engine: ScriptedEngine, place: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drain", "--url", place.url]) == Exit.OK
    assert engine.draining
    assert "what runs may finish" in capsys.readouterr().out
    assert run(["drain", "--url", place.url, "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"done": False, "message": "the engine drains already"}
    assert run(["resume", "--url", place.url]) == Exit.OK
    assert not engine.draining
    assert capsys.readouterr().out == "the engine accepts requests again\n"
    assert run(["resume", "--url", place.url]) == Exit.OK
    assert capsys.readouterr().out == "the engine does not drain\n"


@pytest.mark.usefixtures("engine")
def test_an_engine_that_ends_does_not_serve_again(
    place: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place.app.admin, "ending", True)
    assert run(["resume", "--url", place.url]) == Exit.REFUSED
    assert "told to end" in capsys.readouterr().err


def test_who_has_no_token_is_refused(
    engine: ScriptedEngine, place: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TANDEM_ADMIN_TOKEN")
    assert run(["drain", "--url", place.url]) == Exit.FAILURE
    assert "token" in capsys.readouterr().err
    assert not engine.draining


def test_a_token_of_two_lines_sends_nothing(
    engine: ScriptedEngine, place: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_ADMIN_TOKEN", f"{TOKEN}\nX-Y: z")
    assert run(["drain", "--url", place.url]) == Exit.USAGE
    assert "TANDEM_ADMIN_TOKEN is a secret" in capsys.readouterr().err
    assert not engine.draining


def test_no_engine_is_exit_3() -> None:
    assert run(["drain", "--url", "http://127.0.0.1:9"]) == Exit.NOT_RUNNING
