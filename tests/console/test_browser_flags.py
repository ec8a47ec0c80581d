"""`--web` before anything is served: what it cannot go with, what it needs, and a port that is held."""

from __future__ import annotations

import socket
import sys

import pytest

from console.browser import serve
from tandem.cli import run


@pytest.mark.parametrize("flags", [["--once"], ["--record", "f"], ["--headless"]])
def test_what_it_does_not_go_with(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--web", *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    assert run(["console", "--web", "--url", "http://127.0.0.1:9"]) == 2
    told = "tandem console: --web needs textual-serve: pip install 'tandem-serve[web]'\n"
    assert capsys.readouterr().err == told


def test_a_held_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert serve([sys.executable], port) == 5
    assert capsys.readouterr().err == f"tandem console: --web-port {port}: Address already in use\n"
