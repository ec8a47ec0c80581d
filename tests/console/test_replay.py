"""A recording on the screen: playing, scrubbing, gaps, what it does not hold, and files that are none."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.app.replay import RecordedEngine, ReplayApp, moment_of
from console.draw.scrub import clock_of, scrub
from console.history.recorder import Recorder
from console.history.recording import Recording
from console.history.tape import Tape
from console.history.timeline import Gap, TapeView
from console.keys.actions import REPLAY_ACTIONS
from console.main import replay
from console.text.spans import width_of
from console.widgets.notice import NoticeBar
from engine.protocol import encode
from tandem.cli import run as run_command
from tests.console.test_terminal import start
from tests.support import fake_health
from tests.support.fake_health import Scene
from tests.support.scripted_engine import wait_until

URL = "http://127.0.0.1:8000"
BEGIN = datetime(2027, 1, 15, 9, 0, 0).timestamp()


@dataclass
class Clock:
    """Seconds, moved by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def record(path: Path, scenes: list[tuple[float, Scene]], seconds: float, begin: float = BEGIN) -> None:
    """Two snapshots a second of the scene that began last."""
    clock = Clock()
    with Recorder(path, clock=clock) as recorder:
        for index in range(int(seconds * 2)):
            at = index / 2
            scene = next(scene for since, scene in reversed(scenes) if since <= at)
            clock.now = begin + at
            recorder.snapshot(URL, encode(scene(at)))


@contextmanager
def tape(path: Path) -> Iterator[tuple[Tape, Clock]]:
    clock = Clock()
    with Recording(path) as recording:
        yield Tape(recording, clock), clock


def test_it_plays_at_three_speeds_stands_still_and_ends(tmp_path: Path) -> None:
    record(tmp_path / "f", [(0, fake_health.busy)], 300)
    with tape(tmp_path / "f") as (playing, clock):
        assert playing.position == BEGIN
        clock.now = 10
        assert playing.position == BEGIN + 10
        playing.faster(1)
        clock.now = 20
        assert playing.position == BEGIN + 50
        playing.faster(1)
        playing.faster(1)
        clock.now = 22
        assert playing.position == BEGIN + 82
        assert playing.view().speed == 16
        playing.toggle()
        clock.now = 1000
        assert playing.position == BEGIN + 82
        playing.step(-60)
        assert playing.position == BEGIN + 22
        playing.step(-60)
        assert playing.position == BEGIN
        playing.toggle()
        playing.faster(-1)
        clock.now = 2000
        assert playing.position == playing.end == BEGIN + 299.5
        playing.toggle()
        playing.toggle()
        assert playing.position == BEGIN


def test_what_nobody_recorded_is_passed_over_and_what_was_lost_is_not(tmp_path: Path) -> None:
    record(tmp_path / "f", [(0, fake_health.busy)], 10)
    clock = Clock(BEGIN + 4000)
    with Recorder(tmp_path / "f", clock=clock) as recorder:
        recorder.snapshot(URL, encode(fake_health.idle(0)))
        for second in range(1, 60):
            clock.now = BEGIN + 4000 + second
            recorder.missed(URL, "connection refused")
    with tape(tmp_path / "f") as (playing, moving):
        moving.now = 14
        assert playing.position == BEGIN + 4000
        moving.now = 44
        assert playing.position == BEGIN + 4030
        assert playing.state().error == "connection refused"
        playing.go_to(BEGIN + 2000)
        assert playing.position == BEGIN + 4000


def test_it_goes_on_with_a_file_that_is_still_recorded(tmp_path: Path) -> None:
    clock = Clock(BEGIN)
    with Recorder(tmp_path / "f", clock=clock) as recorder:

        def more(seconds: int) -> None:
            before = recorder.written
            for _ in range(seconds):
                recorder.snapshot(URL, encode(fake_health.busy(clock.now - BEGIN)))
                clock.now += 1
            assert wait_until(lambda: recorder.written == before + seconds)

        more(5)
        with tape(tmp_path / "f") as (playing, moving):
            moving.now = 60
            assert playing.position == BEGIN + 4
            more(5)
            playing.refresh()
            assert playing.view().growing
            assert playing.position == BEGIN + 4
            moving.now = 62
            assert playing.position == BEGIN + 6
            playing.refresh()
            assert not playing.view().growing


def test_rates_are_those_of_the_moment(tmp_path: Path) -> None:
    record(tmp_path / "f", [(0, fake_health.busy), (100, fake_health.idle)], 200)
    with tape(tmp_path / "f") as (playing, clock):
        clock.now = 90
        track = playing.track(playing.position)
        assert min(track.total[-50:]) > 80
        clock.now = 110
        assert playing.track(playing.position).total[-8:] == (0.0,) * 8
        assert len(playing.track(playing.position).total) > 70
        playing.go_to(BEGIN + 80)
        assert min(playing.track(playing.position).total) > 80


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_the_line_is_as_wide_as_the_screen_and_says_where(width: int) -> None:
    gaps = (Gap(BEGIN + 20, BEGIN + 30, None), Gap(BEGIN + 60, BEGIN + 70, "connection refused"))
    view = TapeView(BEGIN, BEGIN + 100, BEGIN + 50, 4, playing=True, growing=True, gaps=gaps)
    line = scrub(view, width)
    text = "".join(span.text for span in line)
    assert width_of(line) == width
    assert "▶ 4x" in text
    assert "09:00:50" in text
    if width >= 60:
        assert text.index("━") < text.index("·") < text.index("●") < text.index("×") < text.rindex("─")
        assert "09:00:00 – 09:01:40 ◉" in text
    if width >= 80:
        assert "space pause" in text
        stands = scrub(dataclasses.replace(view, playing=False), width)
        assert "space play" in "".join(span.text for span in stands)


def test_a_time_of_day_is_found_in_the_recording() -> None:
    day = 86_400.0
    assert moment_of("09:00:30", BEGIN, BEGIN, BEGIN + 60) == BEGIN + 30
    assert moment_of(" 9:00 ", BEGIN + 50, BEGIN + 0.4, BEGIN + 60) == BEGIN + 0.4
    assert moment_of("09:00:30", BEGIN + 2 * day, BEGIN, BEGIN + 3 * day) == BEGIN + 2 * day + 30
    assert moment_of("10:00", BEGIN, BEGIN, BEGIN + 60) == (
        "10:00:00 is not in the recording, which goes from 09:00:00 to 09:01:00"
    )
    for wrong in ("", "25:00", "now", "\x1b[2J"):
        said = moment_of(wrong, BEGIN, BEGIN, BEGIN + 60)
        assert isinstance(said, str)
        assert said.isprintable()
        assert said.endswith("is no time; allowed: HH:MM or HH:MM:SS")


@dataclass
class Stage:
    app: ReplayApp
    pilot: Pilot[int]

    async def text(self) -> str:
        """What the screen says once everything pressed has had its effect."""
        await self.pilot.pause()
        self.app._show()
        await self.pilot.pause()
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())


def on_stage(path: Path, act: Callable[[Stage, Clock], Awaitable[None]], size: tuple[int, int] = (120, 36)) -> None:
    async def run() -> None:
        with tape(path) as (playing, clock):
            app = ReplayApp(RecordedEngine(path), playing)
            async with app.run_test(size=size) as pilot:
                await act(Stage(app, pilot), clock)

    asyncio.run(run())


def test_the_console_over_a_recording(tmp_path: Path) -> None:
    record(tmp_path / "night.tdm", [(0, fake_health.busy), (60, fake_health.waiting), (120, fake_health.idle)], 180)
    clock = Clock(BEGIN + 180)
    with Recorder(tmp_path / "night.tdm", clock=clock) as recorder:
        for _ in range(20):
            recorder.missed(URL, "connection refused")
            clock.now += 1

    async def act(stage: Stage, clock: Clock) -> None:
        press = stage.pilot.press
        text = await stage.text()
        assert "recorded 09:00:00" in text
        assert "night.tdm" in text
        assert "▶ 1x  09:00:00" in text
        assert "Writing," in text
        clock.now = 70
        text = await stage.text()
        assert "recorded 09:01:10" in text
        assert "waits for memory" in text
        await press("space", "shift+left", "right", "right")
        text = await stage.text()
        assert "‖ 1x  09:00:12" in text
        assert "waits for memory" not in text
        await press("g", *"09:02:30", "enter")
        text = await stage.text()
        assert "‖ 1x  09:02:30" in text
        assert "Writing," not in text
        await press("g", *"12", "enter")
        assert "is no time" in await stage.text()
        stage.app.query_one(NoticeBar).hush()
        await press("g", "escape", "end")
        text = await stage.text()
        assert "✖ lost" in text
        assert "connection refused" in text
        await press("home", "plus", "plus", "minus", "space")
        assert "▶ 4x  09:00:00" in await stage.text()
        for view in ("6", "8"):
            await press(view)
            assert "not in a recording" in await stage.text()
        await press("question_mark")
        text = await stage.text()
        assert "in a recording" in text
        for action in REPLAY_ACTIONS:
            assert action.help in text
        await press("escape", "q")
        assert stage.app.return_value == 0

    on_stage(tmp_path / "night.tdm", act)


def test_a_recording_that_breaks_while_it_plays_is_said(tmp_path: Path) -> None:
    record(tmp_path / "f", [(0, fake_health.busy)], 300)

    async def act(stage: Stage, clock: Clock) -> None:
        assert "Writing," in await stage.text()
        with closing(sqlite3.connect(tmp_path / "f", isolation_level=None)) as file:
            file.execute("UPDATE block SET data = x'00' WHERE first > (SELECT min(first) FROM block)")
        clock.now = 100
        assert "is damaged" in await stage.text()

    on_stage(tmp_path / "f", act)


def test_what_cannot_be_replayed_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "f", [(0, fake_health.busy)], 120)
    whole = (tmp_path / "f").read_bytes()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "newer").write_bytes(whole[:60] + (9).to_bytes(4, "big") + whole[64:])
    for name, code in (("none", 2), ("text", 2), ("newer", 2), ("cut", 1)):
        assert replay(tmp_path / name) == code, name
        said = capsys.readouterr().err
        assert said.startswith(f"tandem console: --replay: {tmp_path / name}")
        assert said.count("\n") == 1
        # With no terminal, as here, too: that one would not help.
        for flags in ([], ["--web"]):
            assert run_command(["console", *flags, "--replay", str(tmp_path / name)]) == code
            assert capsys.readouterr().err == said
    assert run_command(["console", "--replay", str(tmp_path / "f")]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_clock_of_is_local_time() -> None:
    assert clock_of(BEGIN + 61) == "09:01:01"


# Taken from a real engine with three slots and five clients, one of which left.
REAL = Path(__file__).parents[2] / "docs" / "recordings" / "three-lanes.tdm"


def test_the_recording_of_a_real_engine(tmp_path: Path) -> None:
    assert REAL.stat().st_size <= 100_000
    path = tmp_path / REAL.name
    shutil.copy(REAL, path)
    with Recording(path) as recording:
        begin = recording.begin
        seen = list(recording.seconds(recording.begin, recording.end))
        assert recording.gaps() == ()
    healths = [entry.health for entry in seen if entry.health is not None]
    assert len(healths) >= 40
    assert max(health.parallel.decoding for health in healths) == 2
    assert max(health.parallel.waiting for health in healths) == 2
    assert healths[-1].parallel.totals.served == 4
    assert healths[-1].parallel.totals.abandoned == 1

    async def act(stage: Stage, clock: Clock) -> None:
        clock.now = 14.6
        text = await stage.text()
        assert f"recorded {clock_of(begin + 14.6)}" in text
        for words in ("three-lanes.tdm", "opencode", "Reading, ", "claude-code", "all 3 slots are busy"):
            assert words in text
        await stage.pilot.press("end")
        assert "served 4" in await stage.text()

    on_stage(path, act)


def test_the_command_opens_it_in_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / REAL.name
    shutil.copy(REAL, path)
    terminal = start(
        str(path), "import sys; from tandem.cli import run; sys.exit(run(['console', '--replay', sys.argv[1]]))"
    )
    terminal.wait_for("recorded ")
    terminal.child.send("+++")
    terminal.wait_for("16x")
    terminal.child.send("q")
    terminal.end()
    assert terminal.child.exitstatus == 0


@pytest.mark.parametrize("flags", [["--url", URL], ["--once"], ["--record", "g"], ["--write"], ["--headless"]])
def test_what_replay_does_not_go_with(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["console", "--replay", "f", *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
