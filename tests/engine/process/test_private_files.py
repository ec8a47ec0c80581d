"""What lies in the state directory: modes, links, and what is in the place of a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.process.ledger.reader import LedgerReader
from engine.process.ledger.store import LedgerStore, LedgerUnusable
from engine.process.private_files import make_private, open_private, read_private, write_private
from engine.process.state_dir import (
    ServiceRecord,
    StateDirUnusable,
    lock_state_dir,
    read_record,
    write_record,
)
from tandem.client.register import read_launch, write_launch
from tandem.service.claims import claimed
from tandem.service.rotation import RotatingLog
from tandem.service.supervisor_report import Report, State, read_report, write_report
from tandem.settings.origins import NO_FLAGS
from tests.engine.process.ledger.rows import row

OWN = os.geteuid()


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """No mode may come from the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def fill(folder: Path) -> None:
    """Write every kind of file that a service leaves in its state directory, and a log that was put aside."""
    with claimed(0, folder), lock_state_dir(folder), RotatingLog(folder / "engine.log", limit_bytes=9) as log:
        write_record(folder, ServiceRecord(pid=1, url="http://127.0.0.1:1", started=1.0, version="0"))
        write_launch(folder, NO_FLAGS)
        write_report(folder, Report(pid=1, engine_pid=None, state=State.ENDED, started=1.0, since=1.0))
        for _ in range(3):
            log.write(b"a line\n")
        store = LedgerStore(folder / "ledger.sqlite")
        store.append([row(1)])
        modes = {path.name: mode(path) for path in folder.iterdir()}
        store.close()
    assert {"engine.lock", "engine.json", "engine.log", "engine.log.2", "ledger.sqlite-wal"} <= set(modes)
    assert {name: oct(found) for name, found in modes.items() if found != 0o600} == {}


def test_the_directory_has_700_and_every_file_in_it_600(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "state"
    fill(folder)
    assert mode(folder) == 0o700


def test_what_an_earlier_version_left_wider_is_narrowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    fill(folder)
    folder.chmod(0o755)
    # A kill leaves SQLite's log behind.
    (folder / "ledger.sqlite-wal").touch()
    for path in folder.iterdir():
        path.chmod(0o644)
    with RotatingLog(folder / "engine.log") as log:
        log.rotate()
    fill(folder)
    assert mode(folder) == 0o700
    assert [mode(path) for path in folder.glob("engine.log.*")] == [0o600] * 3
    assert f"the folder {folder} had mode 755" in caplog.text


def test_a_directory_of_another_user_is_left_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr("engine.process.private_files.os.geteuid", lambda: OWN + 1)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755
    assert f"belongs to user {OWN}" in caplog.text


@pytest.mark.parametrize(
    "name", ["engine.lock", "engine.json", "engine.log", "supervisor.json", "launch.json", "ledger.sqlite-wal"]
)
def test_a_link_is_refused_in_one_line_and_not_followed(tmp_path: Path, name: str) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "state"
    elsewhere.write_bytes(b"kept")
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(StateDirUnusable) as refused, lock_state_dir(folder):
        pass
    words = (
        f"the state directory {folder} cannot be used: {name} is a symbolic link, which is not followed; move it away"
    )
    assert str(refused.value) == words
    assert elsewhere.read_bytes() == b"kept"


def test_no_opener_follows_a_link_that_came_later(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "state"
    folder.mkdir(mode=0o700)
    elsewhere.write_bytes(b"kept")
    with lock_state_dir(folder):
        for name in ("engine.json", "supervisor.json", "launch.json", "engine.log", "ledger.sqlite"):
            (folder / name).symlink_to(elsewhere)
        assert (read_record(folder), read_report(folder), read_launch(folder)) == (None, None, None)
        with pytest.raises(LedgerUnusable, match="symbolic link"):
            LedgerStore(folder / "ledger.sqlite")
        with pytest.raises(LedgerUnusable, match="symbolic link"), LedgerReader(folder / "ledger.sqlite").opened():
            pass
        with RotatingLog(folder / "engine.log") as log:
            log.write(b"lost\n")
        # What is written whole takes the link's place.
        record = ServiceRecord(pid=1, url="http://127.0.0.1:1", started=1.0, version="0")
        write_record(folder, record)
        assert read_record(folder) == record
    assert elsewhere.read_bytes() == b"kept"


def test_a_pipe_in_a_files_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "engine.log")
    for flags in (os.O_RDONLY, os.O_RDWR):
        with pytest.raises(OSError, match="no regular file"):
            open_private(tmp_path / "engine.log", flags)
    with RotatingLog(tmp_path / "engine.log") as log:
        log.write(b"lost\n")


def test_what_cannot_be_written_whole_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine.json"
    write_private(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.process.private_files.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["engine.json"]
    assert read_private(path) == b"old"
