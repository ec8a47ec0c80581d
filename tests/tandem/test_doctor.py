"""`tandem doctor`: the advice as arithmetic, and what it finds on a box."""

from __future__ import annotations

import json

import pytest

from engine.listening import bind
from tandem.cli import run
from tandem.doctor import MOST_SLOTS, recommend
from tandem.exits import Exit

GIB = 1 << 30
ROW = 22 << 10


@pytest.mark.parametrize(
    ("room_rows", "cores", "slots", "words"),
    [
        (0, 8, 1, "left for side slots"),
        (8192, 8, 1, "left for side slots"),
        (8192 + 4095, 8, 1, "left for side slots"),
        (8192 + 4096, 8, 2, "left for side slots"),
        (8192 + 2 * 4096, 8, 3, "left for side slots"),
        (10**6, 1, 2, "more would add little"),
        (10**6, 2, 4, "with 2 cores more would add little"),
        (10**6, 64, MOST_SLOTS, "more are untested"),
    ],
)
def test_the_recommended_slots(room_rows: int, cores: int, slots: int, words: str) -> None:
    weights = 100 << 20
    advice = recommend(
        row_bytes=ROW,
        main_window=8192,
        side_window=4096,
        weights=weights,
        room=weights + room_rows * ROW,
        cores=cores,
    )
    assert advice.slots == slots
    assert words in advice.reason
    assert (advice.main_bytes, advice.side_bytes) == (8192 * ROW, 4096 * ROW)


def lines_of(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    report = json.loads(capsys.readouterr().out)
    return {line["what"]: (line["verdict"], line["detail"]) for line in report["lines"]}


def test_a_taken_port_keeps_an_engine_from_starting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = bind("127.0.0.1", 0)
    monkeypatch.setenv("TANDEM_PORT", str(listening.port))
    try:
        assert run(["doctor", "--json"]) == Exit.FAILURE
    finally:
        listening.close()
    verdict, detail = lines_of(capsys)["address"]
    assert verdict == "fail"
    assert f"port {listening.port}" in detail


def test_an_unknown_model_is_named_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    assert run(["doctor", "--json", "--model", "no-such-model"]) == Exit.FAILURE
    verdict, detail = lines_of(capsys)["model"]
    assert verdict == "fail"
    assert "smollm2-135m" in detail


def test_a_floor_above_the_memory_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_PARALLEL_FLOOR_GB", "1000000")
    assert run(["doctor", "--json"]) == Exit.FAILURE
    assert lines_of(capsys)["memory"][0] == "fail"


def test_a_model_that_is_not_fetched_is_no_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    assert run(["doctor"]) == Exit.OK
    assert "tandem models pull smollm2-135m" in capsys.readouterr().out
