"""The owner's socket: where it lies, its mode, what it replaces, how long its path may be."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from engine.process.owner_socket import LONGEST_ADDRESS, SOCKET_NAME, connect, is_owner, owner_socket


def answers(path: Path, listening: socket.socket) -> bool:
    with connect(str(path), 5.0) as client:
        accepted, _ = listening.accept()
        with accepted:
            accepted.sendall(b"here")
            return client.recv(9) == b"here"


def test_its_mode_is_600_whatever_the_umask_and_it_goes_with_its_engine(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with owner_socket(tmp_path) as owner:
            assert owner is not None
            found = owner.path.lstat()
            assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)
            assert answers(owner.path, owner.socket)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_a_path_longer_than_a_sockets_address(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / ("deeper" * 20)
    folder.mkdir(parents=True)
    assert len(str(folder)) > LONGEST_ADDRESS
    with owner_socket(folder) as owner:
        assert owner is not None
        assert owner.path == folder / SOCKET_NAME
        assert answers(owner.path, owner.socket)
        # A second connection finds the directory that the first one opened.
        assert answers(owner.path, owner.socket)


def test_what_a_dead_engine_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(ConnectionRefusedError):
        connect(str(tmp_path / SOCKET_NAME), 5.0)
    with owner_socket(tmp_path) as owner:
        assert owner is not None
        assert answers(owner.path, owner.socket)


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    (state_dir / SOCKET_NAME).symlink_to(elsewhere)
    with owner_socket(state_dir) as owner:
        assert owner is not None
        assert not owner.path.is_symlink()
        assert answers(owner.path, owner.socket)
    assert elsewhere.read_text() == "kept"


def test_two_engines_have_one_each_and_a_new_directory_keeps_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with owner_socket(second) as lasting:
        assert lasting is not None
        with owner_socket(first) as owner:
            assert owner is not None
            assert answers(owner.path, owner.socket)
            # Moved away and made anew by another engine, at the same path.
            first.rename(tmp_path / "moved")
            second.rename(first)
        assert answers(first / SOCKET_NAME, lasting.socket)


def test_where_there_can_be_none_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / SOCKET_NAME).mkdir()
    with owner_socket(tmp_path) as owner:
        assert owner is None
    assert f"no socket at {tmp_path / SOCKET_NAME}" in caplog.text


def test_who_is_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert is_owner(here)
        monkeypatch.setattr("engine.process.owner_socket.os.geteuid", lambda: os.getuid() + 1)
        # Root comes in everywhere.
        assert is_owner(here) is (os.getuid() == 0)
