"""`tandem doctor --client`: snippets that parse, name no secret, and say what is not there yet."""

from __future__ import annotations

import ast
import json
import tomllib
from typing import Any

import pytest

from engine.http.app import NOT_BUILT
from tandem.cli import run
from tandem.doctor.client_setups import CLIENTS
from tandem.exits import Exit

URL = "http://127.0.0.1:9"


def setup(capsys: pytest.CaptureFixture[str], client: str) -> Any:
    assert run(["doctor", "--client", client, "--url", URL, "--json"]) == Exit.OK
    return json.loads(capsys.readouterr().out)


def parse(kind: str, text: str) -> Any:
    match kind:
        case "json":
            return json.loads(text)
        case "toml":
            return tomllib.loads(text)
        case "env":
            return dict(line.split("=", 1) for line in text.splitlines())
        case _:
            return ast.parse(text)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_snippet_parses_and_names_the_engine(capsys: pytest.CaptureFixture[str], client: str, keyed: bool) -> None:
    secret = ""
    if keyed:
        assert run(["secrets", "add", client]) == Exit.OK
        secret = capsys.readouterr().out.strip()
    found = setup(capsys, client)
    assert parse(found["format"], found["snippet"])
    assert URL in found["snippet"]
    assert found["changes"]
    assert found["place"]
    assert ("TANDEM_API_KEY" in found["snippet"]) == keyed
    assert not keyed or secret not in json.dumps(found)
    assert any(f"label {client}" in note if keyed else "no API keys" in note for note in found["notes"])


def test_a_key_that_is_not_made_yet_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["secrets", "add", "someone-else"]) == Exit.OK
    capsys.readouterr()
    assert any("`tandem secrets add codex`" in note for note in setup(capsys, "codex")["notes"])


def test_where_each_client_finds_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    opencode = json.loads(setup(capsys, "opencode")["snippet"])
    assert opencode["provider"]["tandem"]["options"]["baseURL"] == f"{URL}/v1"
    assert opencode["model"].removeprefix("tandem/") in opencode["provider"]["tandem"]["models"]
    codex = tomllib.loads(setup(capsys, "codex")["snippet"])
    assert codex["model_providers"][codex["model_provider"]]["base_url"] == f"{URL}/v1"
    claude = json.loads(setup(capsys, "claude-code")["snippet"])
    assert claude["env"]["ANTHROPIC_BASE_URL"] == URL


@pytest.mark.parametrize(
    ("client", "route"), [("claude-code", "/v1/messages"), ("codex", "/v1/responses"), ("openai", None)]
)
def test_what_is_missing_is_said_while_it_is(
    capsys: pytest.CaptureFixture[str], client: str, route: str | None
) -> None:
    missing = setup(capsys, client)["missing"]
    if route is None:
        assert missing == []
    else:
        assert (f"this engine does not serve POST {route}" in missing) == (route in NOT_BUILT)


def test_the_snippet_alone_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--client", "codex", "--url", URL]) == Exit.OK
    captured = capsys.readouterr()
    assert tomllib.loads(captured.out)
    assert "sets model_provider" in captured.err


def test_an_unknown_client_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--client", "emacs"]) == Exit.USAGE
    assert "--client is 'emacs'; allowed: openai, opencode, open-webui, claude-code, codex" in capsys.readouterr().err
    assert run(["doctor", "--url", URL]) == Exit.USAGE
