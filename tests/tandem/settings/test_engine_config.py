"""From settings to what the engine and its service are started with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kernels.cpu.cores import Cores
from tandem.settings import engine_config as configure
from tandem.settings.engine_config import crowded, engine_config, service_config
from tandem.settings.origins import resolve


def test_the_ledger_and_the_aliases_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve().settings
    config = engine_config(settings, Path("m.gguf"), "m")
    assert (config.ledger_days, config.ledger_rows) == (30.0, 1_000_000)
    assert not service_config(settings).vllm_metrics
    monkeypatch.setenv("TANDEM_LEDGER_DAYS", "0")
    monkeypatch.setenv("TANDEM_LEDGER_ROWS", "5")
    monkeypatch.setenv("TANDEM_METRICS_ALIASES", "vllm")
    settings = resolve().settings
    config = engine_config(settings, Path("m.gguf"), "m")
    assert (config.ledger_days, config.ledger_rows) == (0.0, 5)
    assert service_config(settings).vllm_metrics


def test_a_request_timeout_of_0_is_no_limit() -> None:
    settings = resolve(environ={"TANDEM_REQUEST_TIMEOUT": "0"}).settings
    assert engine_config(settings, Path("m.gguf"), "m").request_timeout_s == math.inf


def test_more_threads_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configure, "usable_cores", lambda: Cores(2))
    assert crowded(resolve(environ={"TANDEM_THREADS": "2"}).settings) is None
    why = crowded(resolve(environ={"TANDEM_THREADS": "3"}).settings)
    assert why == "TANDEM_THREADS asks for 3 on 2 cores: slower than 2"
    monkeypatch.setattr(configure, "usable_cores", lambda: Cores(2, 1.5, Path("/sys/fs/cgroup/box")))
    why = crowded(resolve(environ={"TANDEM_THREADS": "2"}).settings)
    assert why == "TANDEM_THREADS asks for 2 on a CPU quota of 1.5 on 2 cores (/sys/fs/cgroup/box): slower than 1"
