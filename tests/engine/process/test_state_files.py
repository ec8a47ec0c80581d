"""Small files on a disk that has no room for a second copy, or none at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.process.state_files import try_write


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A file whose draft cannot be written: a directory is in its place."""
    (tmp_path / "state.json.new").mkdir()
    return tmp_path / "state.json"


def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for body in (b"first, which is longer", b"second"):
        assert try_write(path, body) is None
        assert path.read_bytes() == body
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("body", [b"short", b"longer than what was there before"])
def test_without_room_for_a_second_copy_the_blocks_that_are_there_are_used(there: Path, body: bytes) -> None:
    there.write_bytes(b"what was there before")
    assert try_write(there, body) is None
    assert there.read_bytes() == body


def test_what_cannot_be_written_is_said_and_leaves_nothing_old(there: Path) -> None:
    assert try_write(there, b"body") == f"{there} could not be written: Is a directory"
    there.symlink_to("/dev/full")
    assert try_write(there, b"body") == f"{there} could not be written: Is a directory"
    assert not there.is_symlink()
