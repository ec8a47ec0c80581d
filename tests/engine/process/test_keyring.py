"""The file of secrets: what is refused, what a change does to a running engine, and when an old secret ends."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from engine.process.keyring import Keyring, Secret, SecretsUnusable, digest, read_secrets, require_keys, write_secrets
from engine.process.listening import HostNotAllowed


def secret(label: str, text: str, *, until: float | None = None) -> Secret:
    return Secret(label, digest(text.encode()), 0.0, until)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.json"


def test_the_file_is_private_and_holds_no_secret(path: Path) -> None:
    write_secrets(path, (secret("phone", "the-secret-itself"),))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"the-secret-itself" not in path.read_bytes()
    assert [one.label for one in read_secrets(path)] == ["phone"]
    assert [entry.name for entry in path.parent.iterdir()] == ["secrets.json"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_a_wider_mode_is_refused_with_the_fix(path: Path, mode: int) -> None:
    write_secrets(path, ())
    path.chmod(mode)
    with pytest.raises(SecretsUnusable, match=rf"has mode {mode:o}, .*chmod 600 {path}"):
        Keyring(path)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "is no file of secrets"),
        ("{", "is no file of secrets"),
        ('{"keys": []}', "keys"),
        ('{"secrets": [{"label": "a", "sha256": "hunter2", "made": 0}]}', r"64 hex digits.*secrets\[0\]"),
        ('{"secrets": [{"label": "-a", "sha256": "%s", "made": 0}]}' % ("0" * 64), "a label has"),
        ('{"secrets": [{"label": "a", "sha256": "%s", "made": 0, "until": 1e14}]}' % ("0" * 64), "1970 to 9999"),
        ('{"secrets": [{"label": "a", "made": 0}]}', r"sha256.*secrets\[0\]"),
    ],
)
def test_a_damaged_file_is_refused_without_its_contents(path: Path, body: str, words: str) -> None:
    path.write_text(body)
    path.chmod(0o600)
    with pytest.raises(SecretsUnusable, match=words) as refused:
        read_secrets(path)
    assert "hunter2" not in str(refused.value)


def test_no_file_is_no_secrets(path: Path) -> None:
    assert read_secrets(path) == ()
    assert not Keyring(path).has_api_keys
    assert not Keyring(None).has_api_keys


def test_a_secret_is_its_label(path: Path) -> None:
    write_secrets(path, (secret("phone", "one"), secret("laptop", "two"), secret("admin", "three")))
    ring = Keyring(path)
    assert [ring.label_of(text) for text in (b"one", b"two", b"three", b"four", b"")] == [
        "phone",
        "laptop",
        "admin",
        None,
        None,
    ]


def test_tokens_alone_ask_no_client_for_a_key(path: Path) -> None:
    write_secrets(path, (secret("admin", "a"), secret("metrics", "m")))
    ring = Keyring(path)
    assert not ring.has_api_keys
    assert (ring.has_any, ring.has_api_keys) == (True, False)


def test_an_old_secret_ends_by_the_clock_and_opens_nothing(path: Path) -> None:
    now = [100.0]
    write_secrets(path, (secret("phone", "old", until=160.0),))
    ring = Keyring(path, clock=lambda: now[0])
    assert ring.label_of(b"old") == "phone"
    now[0] = 160.0
    assert ring.label_of(b"old") is None
    assert ring.has_api_keys


def test_a_change_holds_from_the_next_question(path: Path) -> None:
    ring = Keyring(path)
    assert not ring.has_api_keys
    write_secrets(path, (secret("phone", "one"),))
    assert ring.label_of(b"one") == "phone"
    write_secrets(path, (secret("phone", "two"),))
    assert (ring.label_of(b"one"), ring.label_of(b"two")) == (None, "phone")
    write_secrets(path, ())
    assert not ring.has_api_keys


@pytest.mark.parametrize("fault", ["gone", "wide", "damaged"])
def test_a_fault_while_running_opens_nothing_and_is_said_once(
    path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_secrets(path, (secret("phone", "one"),))
    ring = Keyring(path)
    match fault:
        case "gone":
            path.unlink()
        case "wide":
            path.chmod(0o644)
        case _:
            path.write_text("{")
    with caplog.at_level(logging.INFO, "tandem.keys"):
        for _ in range(3):
            assert ring.has_api_keys
            assert ring.label_of(b"one") == "phone"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    write_secrets(path, (secret("phone", "two"),))
    assert (ring.label_of(b"one"), ring.label_of(b"two")) == (None, "phone")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_other_machines_are_let_in_only_with_a_key(path: Path, host: str) -> None:
    write_secrets(path, (secret("admin", "a"),))
    with pytest.raises(HostNotAllowed, match="tandem secrets add"):
        require_keys(host, path)
    require_keys("127.0.0.1", path)
    write_secrets(path, (secret("phone", "one"),))
    require_keys(host, path)
