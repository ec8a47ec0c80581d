"""Floors that leave no request any memory are refused before a model is fetched or read."""

from __future__ import annotations

import pytest

from engine.execution.devices import Gpu, Gpus
from engine.memory.probe import FixedProbe
from tandem.cli import run
from tandem.exits import CommandError, Exit
from tandem.service.preflight import check_floors
from tandem.settings.origins import resolve
from tests.support.fake_model import reading

GIB = 1 << 30


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 GiB, 9 of them available, no GPU."""
    monkeypatch.setattr("tandem.service.preflight.open_probe", lambda: FixedProbe(reading(available=9 * GIB)))
    monkeypatch.setattr("tandem.service.preflight.look", lambda: Gpus(()))


@pytest.mark.parametrize(
    ("environ", "words", "code"),
    [
        ({"PARALLEL_FLOOR_GB": "24"}, "TANDEM_PARALLEL_FLOOR_GB must be below the 24 GiB of memory", Exit.USAGE),
        ({"KV_HARD_FLOOR_GB": "5"}, "TANDEM_KV_HARD_FLOOR_GB must lie between 0 and the floor", Exit.USAGE),
        (
            {"PARALLEL_FLOOR_GB": "15"},
            "TANDEM_PARALLEL_FLOOR_GB keeps 10 GiB free whatever runs, and 9 GiB are available",
            Exit.REFUSED,
        ),
        ({"PARALLEL_FLOOR_GB": "15", "KV_HARD_FLOOR_GB": "9"}, "TANDEM_KV_HARD_FLOOR_GB keeps 9 GiB", Exit.REFUSED),
    ],
)
def test_a_floor_that_leaves_nothing(environ: dict[str, str], words: str, code: Exit) -> None:
    with pytest.raises(CommandError, match=words) as refused:
        check_floors(resolve(environ={f"TANDEM_{name}": text for name, text in environ.items()}))
    assert refused.value.code == code


@pytest.mark.parametrize("environ", [{}, {"TANDEM_PARALLEL_FLOOR_GB": "13"}, {"TANDEM_KV_HARD_FLOOR_GB": "0"}])
def test_a_floor_that_leaves_something(environ: dict[str, str]) -> None:
    check_floors(resolve(environ=environ))


def test_a_gpu_is_measured_by_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.service.preflight.look", lambda: Gpus((Gpu(0, "NVIDIA A", (9, 0), 80 * GIB),)))
    check_floors(resolve(environ={"TANDEM_PARALLEL_FLOOR_GB": "40"}))
    with pytest.raises(CommandError, match="must be below the 80 GiB"):
        check_floors(resolve(environ={"TANDEM_PARALLEL_FLOOR_GB": "80"}))
    with pytest.raises(CommandError, match="must be below the 24 GiB"):
        check_floors(resolve(environ={"TANDEM_PARALLEL_FLOOR_GB": "40", "TANDEM_DEVICE": "cpu"}))


@pytest.mark.parametrize("command", ["serve", "start"])
def test_no_engine_starts_with_such_a_floor(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--port", "0", "--model", "no-such-model", "--parallel-floor-gb", "24"]) == Exit.USAGE
    assert "TANDEM_PARALLEL_FLOOR_GB must be below" in capsys.readouterr().err
