"""Pictures of the screen as the app itself exports them; each approved picture was looked at by a person."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.image import SVGImageSnapshotExtension

from console.history.recorder import Recorder
from tests.console.stage import staged
from tests.support.fake_health import SCENES

SIZES = {"80x24": (80, 24), "120x36": (120, 36)}


@dataclass(frozen=True)
class Shot:
    """What is played before the picture: a scene by the second, keys, then perhaps silence."""

    scene: str
    keys: tuple[str, ...] = ()
    lost: bool = False
    seconds: int = 16


SHOTS = {
    "idle": Shot("idle"),
    "busy": Shot("busy"),
    "waiting": Shot("waiting", seconds=12),
    "long_read": Shot("long_read"),
    "yielded": Shot("yielded"),
    "loading": Shot("loading", seconds=6),
    "lost": Shot("busy", lost=True),
    "help": Shot("busy", keys=("question_mark",)),
    "filter": Shot("waiting", keys=("slash", *"webui"), seconds=12),
    "queue_view": Shot("waiting", keys=("3",), seconds=12),
}


async def take(shot: Shot, size: tuple[int, int]) -> str:
    """The picture as SVG."""
    async with staged(size) as stage:
        await stage.play(SCENES[shot.scene], range(shot.seconds + 1))
        if shot.lost:
            await stage.miss("connection refused", after=3.0)
        await stage.pilot.press(*shot.keys)
        await stage.pilot.pause()
        return stage.app.export_screenshot(title="tandem console")


@pytest.fixture
def picture(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(SVGImageSnapshotExtension)


ONE_SIZE = ("help", "filter", "queue_view")
CASES = [(name, size) for name in SHOTS for size in SIZES if size == "80x24" or name not in ONE_SIZE]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_picture(name: str, size: str, picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert asyncio.run(take(SHOTS[name], SIZES[size])) == picture


def test_no_color(picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert asyncio.run(take(SHOTS["yielded"], SIZES["80x24"])) == picture


def test_before_any_answer(picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def nobody() -> str:
        async with staged((80, 24)) as stage:
            await stage.miss("connection refused", after=1.0)
            return stage.app.export_screenshot(title="tandem console")

    assert asyncio.run(nobody()) == picture


def test_recording(tmp_path: Path, picture: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def recording() -> dict[str, str]:
        shots = {}
        with Recorder(tmp_path / "f") as recorder:
            async with staged((80, 24), recorder=recorder) as stage:
                await stage.play(SCENES["busy"], range(9))
                assert "▣ recording   ● ok   ◉ live" in stage.text().splitlines()[0]
                shots["dark"] = stage.app.export_screenshot(title="tandem console")
                stage.app.action_theme("ascii")
                await stage.pilot.pause()
                assert "@ recording   * ok   @ live" in stage.text().splitlines()[0]
                shots["ascii"] = stage.app.export_screenshot(title="tandem console")
                recorder.trouble = "recording stopped: f: database or disk is full"
                await stage.play(SCENES["busy"], [1.0])
                assert "@ recording" not in stage.text()
                assert "recording sto" in stage.text().splitlines()[1]
        return shots

    for name, svg in asyncio.run(recording()).items():
        assert svg == picture(name=name)


PUBLISHED = ("idle", "busy", "waiting", "lost", "loading")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_pictures_in_the_documents_are_the_approved_ones(name: str) -> None:
    approved = Path(__file__).parent / "__snapshots__" / "test_pictures" / f"test_picture[{name}-120x36].svg"
    published = Path(__file__).parents[2] / "docs" / "pictures" / f"console-{name}.svg"
    assert published.read_bytes() == approved.read_bytes(), f"copy {approved} to {published}"


PUBLISHED_VIEWS = {
    "lanes": "test_lanes_view/test_pictures[busy]",
    "lane": "test_lanes_view/test_pictures[opened]",
    "queue": "test_queue_view/test_pictures[crowd]",
    "memory": "test_memory_view/test_pictures[pressure]",
    "rounds": "test_rounds_view/test_pictures[drafting]",
    "roles": "test_data_view_pictures/test_pictures[work][refused]",
    "requests": "test_data_view_pictures/test_pictures[work][requests]",
    "request": "test_data_view_pictures/test_pictures[work][detail]",
    "log": "test_data_view_pictures/test_pictures[work][held]",
    "confirm": "test_data_view_pictures/test_pictures[work][confirm]",
}


@pytest.mark.parametrize("name", PUBLISHED_VIEWS)
def test_the_views_in_the_documents_are_the_approved_ones(name: str) -> None:
    approved = Path(__file__).parent / "__snapshots__" / f"{PUBLISHED_VIEWS[name]}.svg"
    published = Path(__file__).parents[2] / "docs" / "pictures" / f"console-{name}.svg"
    assert published.read_bytes() == approved.read_bytes(), f"copy {approved} to {published}"
