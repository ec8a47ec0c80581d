"""`tandem doctor`: what it finds on a box, and the advice as arithmetic."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.execution.cuda.nvml import GpuState
from engine.execution.devices import Gpu, Gpus
from engine.memory.sizes import size
from engine.process.listening import bind
from engine.process.state_dir import ServiceRecord, lock_state_dir, write_record
from engine.protocol import RoundStat
from kernels.cpu.cores import Cores
from tandem.cli import run
from tandem.doctor import examine
from tandem.doctor.advice import MOST_SLOTS, describe_advice, recommend
from tandem.doctor.examine import _colours
from tandem.exits import Exit
from tandem.settings import engine_config as configure
from tandem.settings.origins import resolve
from tandem.settings.paths import default_state_dir
from tests.support.models import default_model

GIB = 1 << 30
ROW = 22 << 10
SECTIONS = (
    "driver torch compiler python cores memory port lock disk models model secrets linger terminal".split()  # noqa: SIM905
)


def round_stat(rows: int, mean_ms: float) -> RoundStat:
    return RoundStat(rows=rows, rounds=9, mean_ms=mean_ms, p95_ms=mean_ms, tokens_per_round=rows, ms_total=9 * mean_ms)


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
    for count, cost in enumerate(advice.costs, start=1):
        kv_rows = 8192 + 4096 * (count - 1)
        assert (cost.slots, cost.kv_bytes, cost.left_bytes) == (count, kv_rows * ROW, (room_rows - kv_rows) * ROW)
        assert (cost.round_ms, cost.round_ratio) == (None, None)
    assert ("too little" in describe_advice(advice)) == any(cost.left_bytes < 0 for cost in advice.costs)
    assert "Round times are not measured" in describe_advice(advice)


def test_round_times_are_those_an_engine_measured() -> None:
    advice = recommend(
        row_bytes=ROW,
        main_window=8192,
        side_window=4096,
        weights=0,
        room=10**6 * ROW,
        cores=2,
        rounds={1: round_stat(1, 5.0), 4: round_stat(4, 15.0)},
    )
    assert [(cost.round_ms, cost.round_ratio) for cost in advice.costs] == [
        (5.0, 1.0),
        (None, None),
        (None, None),
        (15.0, 3.0),
    ]
    assert "15.0 ms, 3.00 of a round of one, 0.75 each" in describe_advice(advice)
    assert "Round times are not measured" not in describe_advice(advice)


def lines_of(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    report = json.loads(capsys.readouterr().out)
    return {line["what"]: (line["verdict"], line["detail"]) for line in report["lines"]}


def test_every_section_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    assert run(["doctor", "--json"]) == Exit.OK
    assert list(lines_of(capsys)) == SECTIONS


def test_a_taken_port_keeps_an_engine_from_starting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = bind("127.0.0.1", 0)
    monkeypatch.setenv("TANDEM_PORT", str(listening.port))
    try:
        assert run(["doctor", "--json"]) == Exit.FAILURE
    finally:
        listening.close()
    verdict, detail = lines_of(capsys)["port"]
    assert verdict == "fail"
    assert f"port {listening.port}" in detail


def test_an_engine_of_ones_own_that_runs_is_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = bind("127.0.0.1", 0)
    monkeypatch.setenv("TANDEM_PORT", str(listening.port))
    listening.close()
    folder = default_state_dir()
    with lock_state_dir(folder):
        write_record(folder, ServiceRecord(pid=os.getpid(), url=listening.url, started=0.0, version="0"))
        assert run(["doctor", "--json"]) == Exit.OK
    lines = lines_of(capsys)
    assert lines["port"] == ("note", f"{listening.url} is served by your engine, process {os.getpid()}")
    assert lines["lock"][0] == "note"
    assert f"{folder} is held by" in lines["lock"][1]


def test_an_unknown_model_is_named_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    assert run(["doctor", "--json", "--model", "no-such-model"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no-such-model" in captured.err
    assert "smollm2-135m" in captured.err


def test_a_floor_above_the_memory_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_PARALLEL_FLOOR_GB", "1000000")
    assert run(["doctor", "--json"]) == Exit.FAILURE
    verdict, detail = lines_of(capsys)["memory"]
    assert verdict == "fail"
    assert "TANDEM_PARALLEL_FLOOR_GB must be below the" in detail


def test_a_host_that_wants_keys_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_HOST", "0.0.0.0")
    assert run(["doctor", "--json"]) == Exit.FAILURE
    verdict, detail = lines_of(capsys)["secrets"]
    assert verdict == "fail"
    assert "tandem secrets add" in detail
    assert run(["secrets", "add", "phone"]) == Exit.OK
    capsys.readouterr()
    assert run(["doctor", "--json"]) == Exit.OK
    assert lines_of(capsys)["secrets"][1].startswith("1 API key in ")


def test_a_model_that_is_not_fetched_is_no_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    assert run(["doctor"]) == Exit.OK
    assert "tandem models pull smollm2-135m" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lingers", "verdict", "words"),
    [(True, "ok", "outlive"), (False, "note", "loginctl enable-linger"), (None, "ok", "not known")],
)
def test_who_lingers(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lingers: bool | None,
    verdict: str,
    words: str,
) -> None:
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setattr("tandem.doctor.examine.lingers", lambda: lingers)
    assert run(["doctor", "--json"]) == Exit.OK
    found = lines_of(capsys)["linger"]
    assert found[0] == verdict
    assert words in found[1]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TERM": "xterm-256color"}, "256 colours"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "16 million colours"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, "no colours (NO_COLOR)"),
        ({"TERM": "xterm", "NO_COLOR": ""}, "16 colours"),
        ({"TERM": "dumb"}, "no colours"),
        ({}, "no colours"),
    ],
)
def test_the_colours_of_a_terminal(environ: dict[str, str], words: str) -> None:
    assert _colours(environ) == words


@pytest.mark.model
@pytest.mark.parametrize("asked", [True, False])
def test_a_gpu_is_advised_on_by_its_own_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """A GPU with little left beside a host with much: the slots are those that the GPU holds."""
    gpu = Gpu(1, "NVIDIA A", (9, 0), 4 * GIB)
    state = GpuState(total=4 * GIB, free=GIB, driver="570.86") if asked else None
    monkeypatch.setenv("TANDEM_PORT", "0")
    monkeypatch.setenv("TANDEM_PARALLEL_FLOOR_GB", "0.5")
    monkeypatch.setenv("TANDEM_MODEL", str(default_model()))
    monkeypatch.setattr("engine.execution.devices.look", lambda: Gpus((Gpu(0, "NVIDIA O", (7, 5), GIB), gpu)))
    monkeypatch.setattr("tandem.doctor.examine.read_gpu", lambda index: state if index == 1 else None)
    assert run(["doctor", "--json"]) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    lines = {line["what"]: line["detail"] for line in report["lines"]}
    available = GIB if asked else 4 * GIB
    assert lines["GPU"].startswith(f"{size(available)} of 4 GiB available (gpu); floor 512 MiB")
    assert ("driver 570.86" in lines["driver"]) == asked
    assert "cuda:1 runs the model" in lines["driver"]
    advice = report["advice"]
    room = available - GIB // 2 - advice["weights_bytes"]
    for cost in advice["costs"]:
        assert cost["kv_bytes"] + cost["left_bytes"] == room
    held = 1 + (room - advice["main_bytes"]) // advice["side_bytes"]
    assert advice["slots"] == min(MOST_SLOTS, held)


def test_tuning_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("engine.execution.devices.look", lambda: Gpus((), "the CUDA driver shows no GPU"))
    assert run(["doctor", "--tune"]) == Exit.FAILURE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "tandem: doctor --tune measures a CUDA GPU, and the CUDA driver shows no GPU\n"


def test_a_cpu_quota_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One CPU's time on two cores is one thread, and the reason is there."""

    def cores(held: Cores, **environ: str) -> str:
        monkeypatch.setattr(examine, "usable_cores", lambda: held)
        monkeypatch.setattr(configure, "usable_cores", lambda: held)
        return examine._cores(resolve(environ=environ).settings).detail

    limited = Cores(2, 1.0, Path("/sys/fs/cgroup/box"))
    assert cores(limited) == "1 thread: a CPU quota of 1 on 2 cores (/sys/fs/cgroup/box)"
    assert cores(limited, TANDEM_THREADS="2").startswith("TANDEM_THREADS asks for 2 on a CPU quota of 1 on 2 cores")
    assert cores(Cores(2, 2.0, Path("/x"))) == cores(Cores(2)) == "2"
