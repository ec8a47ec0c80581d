"""The team of threads that walks a pass: every unit once and in its phase, and no thread waited for that holds none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCE, BuildError, compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        command = [compiler(), "-std=c++17", "-O1", "-pthread", "-I", str(SOURCE), str(HERE / "walking_team.cpp")]
    except BuildError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("team") / "team"
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


def wrong(team: Path, *words: str) -> int:
    return int(subprocess.run([str(team), *words], check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_unit_is_done_once_and_in_its_phase(team: Path, threads: int) -> None:
    assert wrong(team, "walks", str(threads)) == 0


def test_a_thread_that_has_claimed_nothing_is_not_waited_for(team: Path) -> None:
    assert wrong(team, "absent") == 0
