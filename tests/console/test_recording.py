"""Recordings: what comes back equals what went in, a killed writer loses half a second, other files are left alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.history.codec import BLOCK_SNAPSHOTS, Decoder
from console.history.rates import Track
from console.history.recorder import NotARecording, Recorder, unpacked_block
from console.history.recording import Recording
from console.history.timeline import Gap
from console.main import Options, run, run_headless
from console.session.client import EngineClient, Unreachable
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link
from engine.protocol import Health, encode
from tests.support import fake_health
from tests.support.fake_health import FakeHealth
from tests.support.long_day import Day
from tests.support.scripted_engine import wait_until

FIRST_FORMAT = Path(__file__).parents[2] / "docs/recordings/three-lanes.tdm"
URL = "http://127.0.0.1:8000"
BEGIN = 1_800_000_000.0


@dataclass
class Clock:
    """Unix seconds, moved by hand."""

    now: float = BEGIN

    def __call__(self) -> float:
        return self.now


@contextmanager
def recorder(path: Path) -> Iterator[tuple[Recorder, Clock]]:
    clock = Clock()
    with Recorder(path, clock=clock) as opened:
        yield opened, clock


def record(path: Path, healths: list[Health], step: float = 0.25, begin: float = BEGIN, url: str = URL) -> None:
    with recorder(path) as (opened, clock):
        for index, health in enumerate(healths):
            clock.now = begin + index * step
            opened.snapshot(url, encode(health))
    assert opened.trouble is None


def day(seconds: float) -> list[Health]:
    return [health for _, health in Day(slots=3).snapshots(seconds)]


def test_every_snapshot_comes_back_equal_in_any_order(tmp_path: Path) -> None:
    healths = day(100)
    assert len(healths) > 3 * BLOCK_SNAPSHOTS
    record(tmp_path / "f", healths)
    with Recording(tmp_path / "f") as recording:
        assert (recording.begin, recording.end) == (BEGIN, BEGIN + (len(healths) - 1) * 0.25)
        for index in [*range(0, len(healths), 7), 5, 4, 121, 3, 399, 120, 119]:
            seen = recording.state_at(BEGIN + index * 0.25 + 0.1)
            assert (seen.at, seen.url, seen.error) == (BEGIN + index * 0.25, URL, None)
            assert seen.health == healths[index]
        assert [seen.health for seen in recording.between(BEGIN + 29, BEGIN + 31)] == healths[116:125]
        assert recording.next_after(recording.end) is None
        for index in (350, 20, 150, 119, 240, 0):
            assert recording.next_after(BEGIN + index * 0.25) == BEGIN + (index + 1) * 0.25
        assert recording.next_after(0) == BEGIN
        assert recording.gaps() == ()


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(list(fake_health.SCENES)), min_size=1, max_size=12), st.integers(0, 2**20))
def test_any_sequence_of_scenes_comes_back_equal(tmp_path: Path, scenes: list[str], seed: int) -> None:
    path = tmp_path / f"{seed}-{time.monotonic_ns()}"
    healths = [fake_health.SCENES[name](index + seed / 7) for index, name in enumerate(scenes)]
    record(path, healths, step=1.0)
    with Recording(path) as recording:
        assert [seen.health for seen in recording.between(0, 2 * BEGIN)] == healths


def test_fields_of_a_newer_engine_are_kept(tmp_path: Path) -> None:
    bodies = [encode(health)[:-1] + b',"mood":{"of":%d}}' % index for index, health in enumerate(day(1))]
    with recorder(tmp_path / "f") as (opened, clock):
        for body in bodies:
            clock.now += 0.25
            opened.snapshot(URL, body)
    with Recording(tmp_path / "f") as recording:
        assert len(list(recording.between(0, 2 * BEGIN))) == 4
    with closing(sqlite3.connect(tmp_path / "f")) as file:
        _, lines = unpacked_block(file.execute("SELECT data FROM block").fetchone()[0])
    decoder = Decoder(lines)
    assert [decoder.body(index) for index in range(4)] == bodies


def test_a_recording_in_the_first_format_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "f"
    shutil.copy(FIRST_FORMAT, path)
    with Recording(path) as recording:
        old = list(recording.between(0, 2 * BEGIN))
        end = recording.end
    assert len(old) > BLOCK_SNAPSHOTS
    healths = day(5)
    record(path, healths, begin=end + 1)
    with Recording(path) as recording:
        assert [state.health for state in recording.between(0, 2 * BEGIN)] == [state.health for state in old] + healths


def test_misses_stand_until_the_next_snapshot(tmp_path: Path) -> None:
    first, second = day(0.5)
    with recorder(tmp_path / "f") as (opened, clock):
        opened.snapshot(URL, encode(first))
        for second_of in (1, 2, 3):
            clock.now = BEGIN + second_of
            opened.missed(URL, "connection refused")
        clock.now = BEGIN + 4
        opened.missed(URL, "no answer within 2 s")
        clock.now = BEGIN + 5
        opened.snapshot(URL, encode(second))
    with Recording(tmp_path / "f") as recording:
        assert recording.state_at(BEGIN + 0.9).error is None
        lost = recording.state_at(BEGIN + 3.5)
        assert (lost.health, lost.at, lost.error) == (first, BEGIN, "connection refused")
        assert recording.state_at(BEGIN + 4).error == "no answer within 2 s"
        back = recording.state_at(BEGIN + 5)
        assert (back.health, back.error) == (second, None)
        assert recording.gaps() == (
            Gap(BEGIN + 1, BEGIN + 3, "connection refused"),
            Gap(BEGIN + 4, BEGIN + 4, "no answer within 2 s"),
        )


def test_a_second_run_and_another_engine_are_sessions_of_one_file(tmp_path: Path) -> None:
    healths = day(2)
    record(tmp_path / "f", healths)
    # The clock was set back in between: the file goes on after its end all the same.
    record(tmp_path / "f", healths, begin=BEGIN - 100, url="http://box:1")
    with recorder(tmp_path / "f") as (opened, clock):
        clock.now = BEGIN + 60
        opened.missed("http://box:2", "connection refused")
    with Recording(tmp_path / "f") as recording:
        seen = list(recording.between(0, 2 * BEGIN))
        assert [entry.url for entry in seen] == [URL] * 8 + ["http://box:1"] * 8
        assert [entry.health for entry in seen] == healths * 2
        assert [entry.at for entry in seen] == sorted(entry.at for entry in seen)
        never = recording.state_at(BEGIN + 60)
        assert (never.url, never.health, never.error) == ("http://box:2", None, "connection refused")
        assert [gap.reason for gap in recording.gaps()] == [None, "connection refused"]


def test_a_recording_is_readable_while_it_is_written(tmp_path: Path) -> None:
    healths = day(40)
    with recorder(tmp_path / "f") as (opened, clock):
        opened.snapshot(URL, encode(healths[0]))
        assert wait_until(lambda: opened.written == 1)
        with Recording(tmp_path / "f") as recording:
            assert recording.end == BEGIN
            for index, health in enumerate(healths[1:], 1):
                clock.now = BEGIN + index * 0.25
                opened.snapshot(URL, encode(health))
            assert wait_until(lambda: opened.written == len(healths))
            recording.refresh()
            assert recording.end == clock.now
            assert [seen.health for seen in recording.between(0, 2 * BEGIN)] == healths


WRITER = """
import sys, time
from pathlib import Path
from console.history.recorder import Recorder
from tests.support.fake_health import busy
from engine.protocol import encode
recorder = Recorder(Path(sys.argv[1]))
for second in range(10**6):
    recorder.snapshot("http://127.0.0.1:8000", encode(busy(second / 4)))
    print(recorder.written, flush=True)
    time.sleep(0.005)
"""


def test_a_killed_writer_loses_what_it_had_not_written_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) > BLOCK_SNAPSHOTS:
                break
        os.kill(writer.pid, signal.SIGKILL)
        written = [int(line), *map(int, writer.stdout.read().split())][-1]
    with Recording(path) as recording:
        kept = len(list(recording.between(0, 2 * BEGIN)))
        assert kept >= written
    # The next console goes on with it.
    record(path, day(1), begin=2 * BEGIN)
    with Recording(path) as recording:
        assert len(list(recording.between(0, 3 * BEGIN))) == kept + 4


def test_a_full_disk_stops_the_recording_and_nothing_else(tmp_path: Path) -> None:
    with recorder(tmp_path / "f") as (opened, clock):
        opened._file.execute("PRAGMA max_page_count = 12")
        for health in day(60):
            clock.now += 0.25
            opened.snapshot(URL, encode(health))
        assert wait_until(lambda: opened.trouble is not None)
        opened.snapshot(URL, b"{}")
        assert opened.trouble == f"recording stopped: {tmp_path / 'f'}: database or disk is full"


def test_what_is_no_recording_is_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    file = sqlite3.connect(other)
    file.execute("CREATE TABLE precious (x)")
    file.close()
    (tmp_path / "text").write_text("not a database, and longer than the hundred bytes that a header has" * 3)
    (tmp_path / "short").write_text("x")
    for path in (other, tmp_path / "text", tmp_path / "short"):
        before = path.read_bytes()
        with pytest.raises(NotARecording, match=r"is not a recording of this console; nothing was written to it"):
            Recorder(path)
        with pytest.raises(NotARecording, match="is not a recording of this console"):
            Recording(path)
        assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other.db", "short", "text"]
    with pytest.raises(NotARecording, match="Is a directory"):
        Recorder(tmp_path)
    with pytest.raises(NotARecording, match="No such file"):
        Recording(tmp_path / "none")


def test_a_newer_one_is_named(tmp_path: Path) -> None:
    record(tmp_path / "f", day(1))
    with closing(sqlite3.connect(tmp_path / "f")) as file:
        file.execute("PRAGMA user_version = 9")
    for opening in (Recorder, Recording):
        with pytest.raises(NotARecording, match=r"newer version \(schema 9; this one reads up to 2\)") as caught:
            opening(tmp_path / "f")
        assert not caught.value.damaged


def test_a_cut_or_bent_one_is_said_to_be_damaged(tmp_path: Path) -> None:
    record(tmp_path / "whole", day(60))
    whole = (tmp_path / "whole").read_bytes()
    for length in (0, 1, 50, 99):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(NotARecording):
            Recording(tmp_path / "cut")
    for length in (100, 4096, 8192, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(NotARecording) as caught:
            Recording(tmp_path / "cut")
        assert caught.value.damaged
        assert "\n" not in str(caught.value)
    record(tmp_path / "bent", day(60))
    file = sqlite3.connect(tmp_path / "bent", isolation_level=None)
    file.execute("UPDATE block SET data = substr(data, 1, 900) WHERE first = (SELECT max(first) FROM block)")
    file.close()
    with pytest.raises(NotARecording, match="is damaged"):
        Recording(tmp_path / "bent")


def test_two_consoles_cannot_record_to_one_file(tmp_path: Path) -> None:
    with recorder(tmp_path / "f"), pytest.raises(NotARecording, match="is being recorded by another console"):
        Recorder(tmp_path / "f")
    record(tmp_path / "f", day(1))


def test_only_its_owner_may_read_it_and_one_file_is_left(tmp_path: Path) -> None:
    record(tmp_path / "f", day(1))
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]
    Recorder(tmp_path / "empty").close()
    with pytest.raises(NotARecording, match="holds no snapshot yet"):
        Recording(tmp_path / "empty")


def test_the_client_hands_on_bodies_and_misses(tmp_path: Path) -> None:
    async def ask(url: str, tap: Recorder) -> None:
        async with EngineClient(url, tap) as client:
            await client.fetch()
            server.stop()
            with pytest.raises(Unreachable):
                await client.fetch()

    with FakeHealth(fake_health.busy) as server:
        with Recorder(tmp_path / "f") as tap:
            asyncio.run(ask(server.url, tap))
        server.stop = lambda: None  # type: ignore[method-assign]
    with Recording(tmp_path / "f") as recording:
        last = recording.state_at(recording.end)
        assert last.health is not None
        assert last.health.parallel.running == 3
        assert last.error is not None


def test_headless_records_until_it_is_told_to_end(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from console.main import run_headless as run; "
    call = "sys.exit(run(sys.argv[1], Path(sys.argv[2])))"
    with FakeHealth(fake_health.waiting) as server:
        arguments = [sys.executable, "-c", program + call, server.url, str(tmp_path / "f")]
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as console:
            asked = wait_until(lambda: len(server.asked_with) >= 3 or console.poll() is not None)
            console.terminate()
            _, said = console.communicate()
    assert asked
    assert console.returncode == 0
    assert said == f"recording {server.url} to {tmp_path / 'f'}; Ctrl-C ends it\n"
    with Recording(tmp_path / "f") as recording:
        assert len(list(recording.between(0, 2 * time.time()))) >= 2


@pytest.mark.parametrize("headless", [False, True])
def test_what_cannot_be_recorded_to_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], headless: bool
) -> None:
    (tmp_path / "f").write_text("mine")
    code = run_headless(URL, tmp_path / "f") if headless else run(Options((URL,), record=tmp_path / "f"))
    assert code == 2
    told = f"tandem console: --record: {tmp_path / 'f'} is not a recording of this console; nothing was written to it\n"
    assert capsys.readouterr().err == told


def test_a_recording_that_stopped_is_said_in_the_header() -> None:
    link = Link(URL, 0.1, notice="recording stopped: f: database or disk is full")
    view = screen_view(fake_health.busy(1.0), Track(), link)
    assert view.header.trouble[0] == "recording stopped: f: database or disk is full"
