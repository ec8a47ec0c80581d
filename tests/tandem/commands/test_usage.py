"""`tandem usage`: totals out of a ledger's file, with no engine there."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from engine.process.ledger.store import SCHEMA, LedgerStore
from engine.process.ledger.usage import UsageReport
from tandem.cli import run
from tandem.commands.usage import since_time
from tandem.exits import CommandError, Exit
from tests.engine.process.ledger.rows import row
from tests.support.contract import schema

DAY = 86_400.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a ledger over two days."""
    monkeypatch.setattr("tandem.commands.usage.time.time", lambda: 10 * DAY)
    folder = tmp_path / "somewhere"
    with closing(LedgerStore(folder / "ledger.sqlite")) as store:
        store.append(
            [
                row(1, finished_at=2.5 * DAY, client="opencode"),
                row(2, finished_at=9.5 * DAY, client="opencode", ttft_s=3.0),
                row(3, finished_at=9.5 * DAY, client="curl", model="\x1b[2Jevil [bold]x[/]"),
            ]
        )
    return folder


def test_json_is_the_contracts(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--by", "client", "--since", "7d", "--state-dir", str(state), "--json"]) == Exit.OK
    out = capsys.readouterr().out
    Draft202012Validator(schema("usage")).validate(json.loads(out))
    report = msgspec.json.decode(out, type=UsageReport)
    assert [(group.key, group.totals.requests) for group in report.groups] == [("curl", 1), ("opencode", 1)]
    assert report.total.requests == 2
    assert report.since == 3 * DAY
    assert report.ledger == str(state / "ledger.sqlite")


def test_a_table_with_the_total_last(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--by", "client", "--state-dir", str(state)]) == Exit.OK
    head, curl, opencode, total = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["client", "requests", "prompt", "cached"]
    assert curl.split()[:2] == ["curl", "1"]
    assert opencode.split() == ["opencode", "2", "20", "8", "40", "5.0", "s", "2.00", "s", "0", "0"]
    assert total.split()[:2] == ["total", "3"]


def test_the_figures_are_whole_on_a_narrow_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with closing(LedgerStore(tmp_path / "ledger.sqlite")) as store:
        store.append([row(1, client="c" * 40, prompt_tokens=1_234_567_890, completion_tokens=987_654_321)])
    assert run(["usage", "--by", "client", "--state-dir", str(tmp_path)]) == Exit.OK
    head, client, total = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["errors", "refused"]
    assert client.startswith("c" * 23 + "\N{HORIZONTAL ELLIPSIS} ")
    for line in (client, total):
        assert "1,234,567,890" in line
        assert "987,654,321" in line
        assert line.split()[-2:] == ["0", "0"]


def test_without_groups_the_total_stands_alone(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--state-dir", str(state)]) == Exit.OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["requests", "total"]


def test_a_clients_word_is_shown_literally(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--by", "model", "--state-dir", str(state)]) == Exit.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\N{REPLACEMENT CHARACTER}[2Jevil [bold]x[/]" in out


def test_the_folder_of_the_settings_is_meant_where_none_is_named(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_STATE_DIR", str(state))
    assert run(["usage", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["total"]["requests"] == 3


def test_no_ledger_is_exit_3_and_a_bad_one_exit_1(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["usage", "--state-dir", str(tmp_path / "nothing")]) == Exit.NOT_RUNNING
    assert "no ledger at" in capsys.readouterr().err
    with closing(LedgerStore(state / "ledger.sqlite")) as store:
        store._connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    assert run(["usage", "--state-dir", str(state)]) == Exit.FAILURE
    assert "newer version" in capsys.readouterr().err
    (state / "ledger.sqlite").write_text("not a database\n" * 99)
    assert run(["usage", "--state-dir", str(state)]) == Exit.FAILURE
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("prompt_tokens = 'many'", "prompt_tokens is 'many'; allowed: integer"),
        ("cached_tokens = 1.5", "cached_tokens is 1.5; allowed: integer"),
        ("client = x'00ff'", "client is b'\\x00\\xff'; allowed: text"),
        ("finished_at = 'yesterday'", "finished_at is 'yesterday'; allowed: real"),
        ("finished_at = 1e12", "finished_at is 1000000000000.0"),
        ("total_s = 9e999", "total_s is inf"),
        ("ttft_s = 'soon'", "ttft_s is 'soon'; allowed: real or null"),
        ("finish = 'gone'", "finish is 'gone'; allowed: stop or length or"),
        ("finished_at = -2.3e11", "finished_at is -230000000000.0; allowed: real, at most 2.1e+11 either way"),
    ],
)
def test_a_row_edited_by_hand_is_named(state: Path, edit: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(state / "ledger.sqlite", isolation_level=None)) as file:
        file.execute(f"UPDATE requests SET {edit} WHERE seq = 2")
    by = "client" if edit.startswith("client") else "day"
    assert run(["usage", "--by", by, "--state-dir", str(state)]) == Exit.FAILURE
    err = capsys.readouterr().err
    assert "row 2 of the ledger does not fit" in err
    assert words in err
    assert err.count("\n") == 1


def test_since() -> None:
    assert since_time("90m", 10_000) == 10_000 - 5400
    assert since_time("24h", 100_000) == 100_000 - 86_400
    assert since_time("2w", 0) == -14 * DAY
    assert since_time("2026-11-05", 0) == datetime(2026, 11, 5).timestamp()
    for wrong in ("", "7", "d", "-7d", "7 d", "2026-13-01", "yesterday", "7D"):
        with pytest.raises(CommandError, match="--since is") as raised:
            since_time(wrong, 0)
        assert raised.value.code == Exit.USAGE
    assert run(["usage", "--by", "hour"]) == Exit.USAGE
