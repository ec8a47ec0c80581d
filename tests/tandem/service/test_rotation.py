"""The background engine's log: bounded while it is written, whole to whoever follows it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tandem.service.rotation import RotatingLog, follow, numbered, pump, read_back
from tests.support.patience import LONG_S


def test_the_size_is_bounded_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with RotatingLog(path, limit_bytes=1000, kept=2) as log:
        for number in range(200):
            log.write(f"line {number:04d} of the log\n".encode())
        files = sorted(tmp_path.glob("engine.log*"))
    assert files == [path, numbered(path, 1), numbered(path, 2)]
    assert all(file.stat().st_size <= 1000 for file in files)
    lines, newest = read_back(path, 1)
    newest.close()
    assert lines == ["line 0199 of the log\n"]


def test_a_line_longer_than_the_limit_is_kept_whole(tmp_path: Path) -> None:
    with RotatingLog(tmp_path / "engine.log", limit_bytes=10) as log:
        log.write(b"x" * 100 + b"\n")
        log.write(b"short\n")
        assert (tmp_path / "engine.log.1").read_bytes() == b"x" * 100 + b"\n"
        assert (tmp_path / "engine.log").read_bytes() == b"short\n"


def test_the_last_lines_reach_into_older_files(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with RotatingLog(path, limit_bytes=20) as log:
        for number in range(8):
            log.write(f"line {number}\n".encode())
        lines, file = read_back(path, 5)
        file.close()
        assert lines == [f"line {number}\n" for number in range(3, 8)]
        lines, file = read_back(path, 100)
        file.close()
        assert lines[-1] == "line 7\n"


def test_a_new_start_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    for run in ("first", "second"):
        with RotatingLog(path) as log:
            log.rotate()
            log.write(f"{run}\n".encode())
    assert (path.read_text(), numbered(path, 1).read_text()) == ("second\n", "first\n")


def test_a_follower_misses_nothing_through_rotations(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with RotatingLog(path, limit_bytes=2000, kept=100) as log:
        log.write(b"before\n")
        lines, file = read_back(path, 10)
        written = threading.Event()
        heard: list[str] = []
        follower = threading.Thread(target=lambda: heard.extend(follow(path, file, ended=written.is_set)))
        follower.start()
        for number in range(100):
            log.write(f"{number}\n".encode())
        log.rotate()
        for number in range(100, 200):
            log.write(f"{number}\n".encode())
        written.set()
        follower.join(LONG_S)
        assert lines == ["before\n"]
        assert heard == [f"{number}\n" for number in range(200)]


def test_what_has_no_end_of_line_is_kept(tmp_path: Path) -> None:
    with RotatingLog(tmp_path / "engine.log") as log:
        out, into = os.pipe()
        reader = threading.Thread(target=pump, args=(os.fdopen(out, "rb"), log))
        reader.start()
        os.write(into, b"first\nsec")
        os.write(into, b"ond\nthe last words")
        os.close(into)
        reader.join(LONG_S)
        assert (tmp_path / "engine.log").read_text() == "first\nsecond\nthe last words\n"
        assert log.last_line == "the last words"


def test_a_log_that_is_taken_away_is_begun_anew(tmp_path: Path) -> None:
    """Also with its folder, and the writer never writes where nobody reads."""
    path = tmp_path / "state" / "engine.log"
    with RotatingLog(path) as log:
        log.write(b"one\n")
        path.unlink()
        log.write(b"two\n")
        assert path.read_text() == "two\n"
        path.unlink()
        path.parent.rmdir()
        log.write(b"three\n")
        assert path.read_text() == "three\n"


def test_a_full_disk_does_not_end_the_writer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with RotatingLog(tmp_path / "file" / "engine.log") as log:
        log.write(b"lost\n")
        log.rotate()
        assert log.last_line == "lost"
