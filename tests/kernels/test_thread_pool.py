"""The thread pool of a forward: every unit once and in its phase, and no wait for a thread that holds none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCE, BuildError, compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        command = [compiler(), "-std=c++17", "-O1", "-pthread", "-I", str(SOURCE), str(HERE / "walking_pool.cpp")]
    except BuildError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("pool") / "pool"
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


def wrong(pool: Path, *words: str) -> int:
    return int(subprocess.run([str(pool), *words], check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_unit_is_done_once_and_in_its_phase(pool: Path, threads: int) -> None:
    assert wrong(pool, "walks", str(threads)) == 0


def test_a_thread_that_has_claimed_nothing_is_not_waited_for(pool: Path) -> None:
    assert wrong(pool, "absent") == 0
