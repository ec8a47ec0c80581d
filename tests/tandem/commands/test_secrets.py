"""`tandem secrets`: shown once, kept as digests, rotated with and without grace."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from engine.process.keyring import Keyring, read_secrets
from tandem.cli import run
from tandem.exits import Exit


@pytest.fixture
def path(folders: Path) -> Path:
    return folders / "secrets.json"


def made(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The secret that a command prints."""
    assert run(["secrets", *args]) == Exit.OK
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return out.strip()


def test_a_key_is_printed_once_and_opens(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(capsys, "add", "phone")
    assert key.startswith("tk-")
    assert len(key) > 40
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keyring(path).label_of(key.encode()) == "phone"
    assert run(["secrets", "list"]) == Exit.OK
    assert run(["secrets", "list", "--json"]) == Exit.OK
    captured = capsys.readouterr()
    assert key not in captured.out + captured.err
    listed = json.loads(captured.out[captured.out.index("[") :])
    assert [(one["label"], one["kind"], one["until"], one["holds"]) for one in listed] == [
        ("phone", "API key", None, True)
    ]


def test_a_rotation_ends_the_old_key_at_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = made(capsys, "add", "phone")
    new = made(capsys, "rotate", "phone")
    ring = Keyring(path)
    assert (ring.label_of(old.encode()), ring.label_of(new.encode())) == (None, "phone")


def test_grace_lets_the_old_key_hold_a_while(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = made(capsys, "add", "phone")
    second = made(capsys, "rotate", "phone", "--grace", "10m")
    third = made(capsys, "rotate", "phone", "--grace", "1h")
    held = {secret.sha256: secret for secret in read_secrets(path)}
    assert len(held) == 3
    made_at = max(secret.made for secret in held.values())
    for minutes, labels in ((9, ["phone"] * 3), (30, [None, "phone", "phone"]), (61, [None, None, "phone"])):
        ring = Keyring(path, clock=lambda minutes=minutes: made_at + 60 * minutes)
        assert [ring.label_of(key.encode()) for key in (first, second, third)] == labels


@pytest.mark.parametrize("name", ["admin", "metrics"])
def test_a_token_is_made_and_made_anew_by_rotate(path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    old, new = made(capsys, "rotate", name), made(capsys, "rotate", name)
    ring = Keyring(path)
    assert (ring.label_of(old.encode()), ring.label_of(new.encode())) == (None, name)
    assert not ring.has_api_keys


def test_removing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, "add", "phone")
    assert run(["secrets", "remove", "phone"]) == Exit.OK
    assert "no API key is left" in capsys.readouterr().err
    assert read_secrets(path) == ()


def test_a_secret_brought_along_is_not_shown_again(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "a-key-that-clients-have-already"
    monkeypatch.setattr("sys.stdin", io.StringIO(key + "\n"))
    assert run(["secrets", "add", "phone", "--from-stdin"]) == Exit.OK
    captured = capsys.readouterr()
    assert key not in captured.out + captured.err
    assert Keyring(path).label_of(key.encode()) == "phone"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["add", "admin"], "secrets rotate admin"),
        (["add", "two words"], "the label is 'two words'; allowed: "),
        (["add", "phone"], "phone has a key already"),
        (["rotate", "tablet"], "no secret is named 'tablet'; there are: phone"),
        (["remove", "tablet"], "no secret is named 'tablet'; there are: phone"),
        (["rotate", "phone", "--grace", "soon"], "--grace is 'soon'; allowed: "),
        (["rotate", "phone", "--grace", "-5m"], "--grace is '-5m'; allowed: "),
        (["rotate", "phone", "--grace", "999999999d"], "--grace is '999999999d'; allowed: at most 366d"),
        (["add", "Metrics"], "secrets rotate metrics"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    made(capsys, "add", "phone")
    before = path.read_bytes()
    assert run(["secrets", *args]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tandem: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert path.read_bytes() == before


def test_one_secret_has_one_label(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would shut the token out: what opens as a key does not act."""
    token = made(capsys, "rotate", "admin")
    key = made(capsys, "add", "phone")
    before = path.read_bytes()
    for args, secret, owner in ((["add", "tablet"], token, "admin"), (["rotate", "admin"], key, "phone")):
        monkeypatch.setattr("sys.stdin", io.StringIO(secret + "\n"))
        assert run(["secrets", *args, "--from-stdin"]) == Exit.USAGE
        err = capsys.readouterr().err
        assert f"is that of {owner} already" in err
        assert secret not in err
    assert path.read_bytes() == before


@pytest.mark.parametrize("given", ["short", "", "with a space in the middle of it", "schlüssel-schlüssel-schlüssel"])
def test_a_weak_secret_is_refused_unseen(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given + "\n"))
    assert run(["secrets", "add", "phone", "--from-stdin"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert not given or given not in err
    assert not path.exists()


def test_a_wide_mode_stops_every_command_with_the_fix(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, "add", "phone")
    path.chmod(0o644)
    for args in (["secrets", "list"], ["secrets", "rotate", "phone"], ["serve", "--port", "0"]):
        assert run(args) == Exit.USAGE
        assert f"has mode 644, which lets other users read or change it; allowed: 600 (chmod 600 {path})" in (
            capsys.readouterr().err
        )


def test_a_token_that_does_not_parse_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_ADMIN_TOKEN", "hush\thush")
    assert run(["config", "show"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "hush" not in err
    assert "TANDEM_ADMIN_TOKEN" in err
