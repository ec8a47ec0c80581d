"""`tandem residency`: what each command says, with an engine, without one, and with damaged files."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from engine import protocol
from engine.memory.sizes import GIB
from engine.protocol import Health, RoleState, encode
from engine.protocol.reports import PlanReport
from engine.roles.journal import JOURNAL_NAME, JournalLine
from tandem.cli import run
from tests.support import fake_health

NARRATOR = protocol.Role(
    name="narrator",
    kind="narrator",
    state=RoleState.PLANNED,
    claim_bytes=314572800,
    measured_bytes=None,
    reason="roles do not run yet; the plan would load it",
    since_s=70.0,
    reloads=0,
)


def desktop() -> Health:
    """28.97 GiB available on a box with a 15 GiB floor, the engine 8.25 GiB under its declared peak."""
    body = fake_health.health(0.0, [fake_health.lane(0)])
    holds = int(76.4 * GIB)
    return replace(
        body,
        memory=replace(
            body.memory,
            source="unified",
            available=int(28.97 * GIB),
            floor=15 * GIB,
            hard_floor=10 * GIB,
            peak=holds + int(8.25 * GIB),
            split=replace(body.memory.split, weights=holds, caches=0, workspace=0, roles=0, outside=0),
        ),
        roles=[NARRATOR],
    )


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    """No engine answers where the settings point."""
    monkeypatch.setenv("TANDEM_PORT", str(free_port))


class Served:
    """A port that answers `/health` with a snapshot that the test may change."""

    def __init__(self) -> None:
        self.body = encode(desktop())
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(served.body)))
                self.end_headers()
                self.wfile.write(served.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})


@pytest.fixture
def engine() -> Iterator[Served]:
    served = Served()
    served.thread.start()
    yield served
    served.server.shutdown()
    served.thread.join()
    served.server.server_close()


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out, err = capsys.readouterr()
    return " ".join(out.split()), " ".join(err.split())


@pytest.mark.parametrize("words", [["dry-run"], ["--dry-run"], ["dry-run", "--dry-run"]])
def test_a_dry_plan_without_an_engine_is_made_on_this_boxs_figures(words, quiet, capsys):
    assert run(["residency", "plan", *words]) == 0
    out, _ = said(capsys)
    assert "Figures of this box, no engine runs" in out
    for role in ("decider", "narrator", "shadow-reader"):
        assert f"{role}: " in out


@pytest.mark.parametrize("words", [["dry-run"], ["--dry-run"]])
def test_a_dry_plan_as_json_is_the_report_and_nothing_else_on_stdout(words, quiet, capsys):
    assert run(["residency", "plan", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    report = msgspec.json.decode(out, type=PlanReport)
    assert report.dry_run
    assert [d.role for d in report.decisions] == ["decider", "narrator", "shadow-reader"]
    assert report.memory.margin == 4 * GIB
    assert report.memory.engine_growth_to_come == 0
    assert report.decisions[0].headroom_after == report.memory.available - 3 * GIB
    assert "Figures of this box" in err


def test_a_dry_plan_uses_a_running_engines_figures(engine, capsys, tmp_path):
    plan = tmp_path / "mine.toml"
    plan.write_text('[[role]]\nname = "shadow-reader"\nkind = "shadow"\nclaim_gb = 6.5\nclaim_source = "measured"\n')
    assert run(["residency", "plan", "--dry-run", "--url", engine.url, "--file", str(plan)]) == 0
    out, _ = said(capsys)
    assert f"Figures of the engine at {engine.url}; growth to come is up to its declared peak." in out
    assert "28.97 GiB available (unified), 8.25 GiB of engine growth to come, 15 GiB floor, 4 GiB margin" in out
    assert "would leave 14.22 GiB, under the 15 GiB floor." in out
    assert "To fit: 4.78 GiB more for floor and margin: a lower declared peak, a smaller margin, or fewer slots." in out


def test_a_role_that_is_loaded_is_kept(engine, capsys):
    loaded = replace(NARRATOR, state=RoleState.LOADED)
    engine.body = encode(replace(desktop(), roles=[loaded]))
    assert run(["residency", "plan", "--dry-run", "--json", "--url", engine.url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {d["role"]: d["decision"] for d in report["decisions"]}["narrator"] == "keep"


def test_an_engine_that_is_asked_for_and_does_not_answer_is_named_and_the_plan_still_made(free_port, capsys):
    assert run(["residency", "plan", "--dry-run", "--url", f"http://127.0.0.1:{free_port}"]) == 0
    out, _ = said(capsys)
    assert f"no engine runs (nothing answers at http://127.0.0.1:{free_port}" in out


def test_something_else_on_the_port_is_no_engine(engine, capsys):
    engine.body = b"hello"
    assert run(["residency", "plan", "--dry-run", "--url", engine.url]) == 0
    out, _ = said(capsys)
    assert "no engine runs (the engine refused (200): " in out


def test_the_floor_and_margin_that_are_set_are_used(quiet, monkeypatch, capsys):
    monkeypatch.setenv("TANDEM_PARALLEL_FLOOR_GB", "1.5")
    monkeypatch.setenv("TANDEM_ROLE_RELOAD_MARGIN_GB", "2")
    assert run(["residency", "plan", "dry-run", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["memory"]
    assert (figures["floor"], figures["margin"]) == (3 * GIB // 2, 2 * GIB)


def test_the_users_own_document_wins_over_the_one_that_ships(quiet, folders: Path, capsys):
    (folders / "residency.toml").write_text("[memory]\nmargin_gb = 1\nengine_peak_gb = 3\n")
    assert run(["residency", "plan", "--dry-run"]) == 0
    out, _ = said(capsys)
    assert "the 3 GiB that engine_peak_gb declares for one are kept free" in out
    assert "names no roles" in out


@pytest.mark.parametrize("words", [["plan"], ["plan", "--json"], ["ps"], ["load", "narrator"], ["unload", "narrator"]])
def test_what_needs_an_engine_exits_3_without_one(words, quiet, capsys):
    assert run(["residency", *words]) == 3
    out, err = said(capsys)
    assert out == ""
    assert "nothing answers" in err


@pytest.mark.parametrize("words", [["plan"], ["load", "narrator"], ["unload", "narrator"]])
def test_what_would_change_an_engine_is_refused_in_a_sentence(words, engine, capsys):
    assert run(["residency", *words, "--url", engine.url]) == 5
    out, err = said(capsys)
    assert out == ""
    assert "roles do not run yet in the engine" in err


def test_a_role_that_the_engine_does_not_know_is_a_usage_error(engine, capsys):
    assert run(["residency", "load", "oracle", "--url", engine.url]) == 2
    assert "no role 'oracle'; known: narrator" in said(capsys)[1]


def test_ps_says_what_health_says(engine, capsys):
    assert run(["residency", "ps", "--url", engine.url]) == 0
    out, _ = said(capsys)
    assert "narrator planned 300 MiB - 1 m 10 s roles do not run yet;" in out
    assert run(["residency", "ps", "--json", "--url", engine.url]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "planned"
    engine.body = encode(replace(desktop(), roles=[]))
    assert run(["residency", "ps", "--url", engine.url]) == 0
    assert "names none" in said(capsys)[0]


def test_an_unknown_word_and_a_damaged_document_exit_2_in_one_line(quiet, folders: Path, capsys):
    assert run(["residency", "plan", "wet-run"]) == 2
    assert "residency plan wet-run: no such word; allowed: dry-run" in capsys.readouterr().err
    (folders / "residency.toml").write_text("[memory]\nmargin_gb = 'much'\n")
    for words in (["--dry-run"], []):
        assert run(["residency", "plan", *words]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "residency.toml: memory.margin_gb = 'much': allowed: a number of GiB" in err


def test_the_journal_is_printed_oldest_first_and_damaged_lines_are_counted(tmp_path, capsys):
    lines = [
        JournalLine(
            time=1700000000.0, action="refuse", role="shadow-reader", numbers={"claim": 3 * GIB}, cause="no room"
        ),
        JournalLine(time=1700000060.0, action="load", role="a\x1b[31m", numbers={}, cause="asked for"),
    ]
    body = b"\n".join([msgspec.json.encode(lines[0]), b'{"time": 17', msgspec.json.encode(lines[1])])
    (tmp_path / JOURNAL_NAME).write_bytes(body)
    assert run(["residency", "journal", "--state-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.endswith("refuse   shadow-reader: no room (claim 3 GiB)")
    assert second.endswith("load     a\ufffd[31m: asked for")
    assert "1 lines of the journal" in err
    assert run(["residency", "journal", "--json", "--state-dir", str(tmp_path)]) == 0
    assert [entry["action"] for entry in json.loads(capsys.readouterr().out)] == ["refuse", "load"]


def test_no_journal_is_said_on_stderr(tmp_path, capsys):
    assert run(["residency", "journal", "--state-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no journal in" in err


def test_planning_loads_no_torch():
    code = "import sys, tandem.commands.residency; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
