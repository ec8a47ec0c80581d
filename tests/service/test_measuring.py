"""Bench and checks against real engines, and chat in a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from tandem.cli import run
from tandem.exits import Exit
from tests.service.conftest import LONG_S, Box
from tests.support.scripted_engine import wait_until

pytestmark = [pytest.mark.service, pytest.mark.model]


def test_bench_proves_its_levels_on_the_running_engine(running: Box) -> None:
    done = running.tandem("bench", "c1", "c2", "--count", "2", "--tokens", "40", "--json")
    report = json.loads(done.stdout)
    assert report["valid"] is True, report
    assert [(level["identical"], level["of"]) for level in report["levels"]] == [(2, 2), (2, 2)]
    assert report["levels"][1]["proof"]["peak_decoding"] == 2
    assert report["levels"][1]["proof"]["rounds"]["2"] > 0
    assert done.returncode == Exit.OK


def test_bench_brings_its_own_engine_and_ends_it(box: Box) -> None:
    """Also where the user's engines want a key: its own serves nobody else."""
    assert box.tandem("secrets", "add", "phone").returncode == Exit.OK
    done = box.tandem("bench", "c2", "--count", "2", "--tokens", "40", "--max-len", "512", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["valid"], report["engine"]["parallel"]) == (Exit.OK, True, 2)
    assert "an engine of its own" in done.stderr
    assert box.tandem("status").returncode == Exit.NOT_RUNNING


def test_an_engine_of_its_own_ends_with_a_killed_bench(box: Box) -> None:
    bench = box.spawn("bench", "c1", "--max-len", "512")
    try:
        assert wait_until(lambda: any("serve" in child.cmdline() for child in psutil.Process(bench.pid).children()))
        (engine,) = psutil.Process(bench.pid).children()
    finally:
        bench.kill()
        bench.wait()
    engine.wait(LONG_S)


@pytest.mark.parametrize("check", ["batch", "interleave", "early-close", "parking"])
def test_a_check_holds(running: Box, check: str) -> None:
    done = running.tandem("check", check, "--tokens", "12", "--json")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["check"], report["held"]) == (check, True)
    assert report["findings"]


@pytest.fixture
def terminal(running: Box) -> Iterator[pexpect.spawn[str]]:
    command, *args = running.command("chat", "--temperature", "0", "--max-tokens", "400")
    child = pexpect.spawn(command, args, env=running.env, encoding="utf-8", timeout=LONG_S)
    child.expect("> ")
    yield child
    child.close(force=True)


def test_chat_answers_in_turns_and_ctrl_c_stops_one(terminal: pexpect.spawn[str], running: Box) -> None:
    terminal.sendline("Write a very long story about a harbour.")
    # The terminal's echo comes first, and is no answer.
    terminal.expect("about a harbour[.]\r\n")
    terminal.expect("[a-z]{3,} [a-z]+ [a-z]+")
    terminal.sendintr()
    terminal.expect("stopped")
    terminal.expect("> ")
    terminal.sendline("/new")
    terminal.expect("a new conversation")
    terminal.expect("> ")
    terminal.sendline("/exit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == Exit.OK


def test_ctrl_d_leaves(terminal: pexpect.spawn[str]) -> None:
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == Exit.OK


def test_a_prompt_through_a_pipe(running: Box) -> None:
    done = running.tandem("chat", "--json", "--max-tokens", "4", "--temperature", "0", stdin="Say yes.")
    assert done.returncode == Exit.OK
    assert json.loads(done.stdout)["usage"]["completion_tokens"] <= 4


def test_a_key_made_beside_a_running_engine_and_a_client_set_up_for_it(
    running: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snippet for the OpenAI SDK as it is printed, against an engine that gets its first key while it runs."""
    for name in ("TANDEM_CONFIG_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, running.env[name])

    def tandem(*args: str) -> str:
        assert run(args) == Exit.OK
        return capsys.readouterr().out

    key = tandem("secrets", "add", "openai").strip()
    try:
        assert run(["chat", "--url", running.record.url, "Say yes."]) == Exit.FAILURE
        assert "401 invalid_api_key" in capsys.readouterr().err
        snippet = tmp_path / "snippet.py"
        snippet.write_text(tandem("doctor", "--client", "openai"))
        answer = subprocess.run(
            [sys.executable, str(snippet)],
            env=running.env | {"TANDEM_API_KEY": key},
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.strip()
        assert wait_until(lambda: running.last_logged.get("client") == "openai")
        assert running.last_logged["event"] == "[req]"
        assert key not in (running.state_dir / "engine.log").read_text()
    finally:
        tandem("secrets", "remove", "openai")
