"""Decides when an engine is restarted and when the supervisor gives up: pure functions over probe results.

The supervisor passes in a probe every few seconds and the end of each process, with its own clock's time. It gets
back the new state and one decision. Nothing here sleeps, sends signals or asks an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec


class ProbeResult(StrEnum):
    """What one probe found."""

    OK = "ok"
    LOADING = "loading"
    DRAINING = "draining"
    STUCK = "stuck"
    """It answers, and its engine thread does not move."""
    SILENT = "silent"
    """No answer within the probe's time."""


class ProcessPhase(StrEnum):
    """What the process was last known to do."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds, times in seconds.

    A probe is sent every `probe_s` and may take `answer_s`, so that a slow engine still counts as healthy. A serving
    engine is hung after `failures` probes in a row without a good answer. An engine that answers that it loads or
    drains may do so without a limit. One that does not answer is hung after `silent_load_s` or `silent_drain_s`, which
    are longer than any compiler run or drain. The pause before a restart is `pause_s`, doubled with each up to
    `longest_pause_s`. After `restarts` of them without `healthy_s` of good answers in between, the next failure ends
    the service.
    """

    probe_s: float = 5.0
    answer_s: float = 10.0
    failures: int = 3
    silent_load_s: float = 1800.0
    silent_drain_s: float = 120.0
    pause_s: float = 1.0
    longest_pause_s: float = 60.0
    restarts: int = 5
    healthy_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What is remembered of a service.

    `heard_at` is the last good answer of this process, or its start. `healthy_since` is the first of an unbroken row of
    good answers. `restarts` counts those since the engine was last healthy for long.
    """

    heard_at: float
    phase: ProcessPhase = ProcessPhase.STARTING
    ever_ready: bool = False
    failures: int = 0
    healthy_since: float | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Nothing:
    """Let the process go on."""


@dataclass(frozen=True, slots=True)
class Restart:
    """End what is left of the process, wait `pause_s`, start another."""

    pause_s: float
    cause: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End what is left of the process and start no other."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The engine ended on request."""


Decision = Nothing | Restart | GiveUp | Done

USAGE_EXIT = 2
"""A restart does not change what an engine ended with this code for: its settings are wrong."""


def started(watch: WatchState | None, now: float) -> WatchState:
    """The watch over a new process, the first or the next."""
    if watch is None:
        return WatchState(heard_at=now)
    return replace(watch, heard_at=now, phase=ProcessPhase.STARTING, failures=0, healthy_since=None)


def probed(
    policy: Policy, watch: WatchState, now: float, result: ProbeResult, detail: str = ""
) -> tuple[WatchState, Decision]:
    """Judge a probe of the running process. `detail` says in words what went wrong with it."""
    if result is ProbeResult.OK:
        since = now if watch.healthy_since is None else watch.healthy_since
        restarts = 0 if now - since >= policy.healthy_s else watch.restarts
        healthy = WatchState(
            heard_at=now, phase=ProcessPhase.SERVING, ever_ready=True, healthy_since=since, restarts=restarts
        )
        return healthy, Nothing()
    if result in (ProbeResult.LOADING, ProbeResult.DRAINING):
        phase = ProcessPhase.STARTING if result is ProbeResult.LOADING else ProcessPhase.DRAINING
        return replace(watch, heard_at=now, phase=phase, failures=0, healthy_since=None), Nothing()
    watch = replace(watch, healthy_since=None)
    patience = {
        ProcessPhase.STARTING: policy.silent_load_s,
        ProcessPhase.DRAINING: policy.silent_drain_s,
        ProcessPhase.SERVING: 0.0,
    }
    if now - watch.heard_at < patience[watch.phase]:
        return watch, Nothing()
    watch = replace(watch, failures=watch.failures + 1)
    if watch.failures < policy.failures:
        return watch, Nothing()
    return _restart(
        policy, watch, f"hung: {watch.failures} probes in a row failed, the last one: {detail or result.value}"
    )


def exited(policy: Policy, watch: WatchState, code: int, words: str) -> tuple[WatchState, Decision]:
    """Judge the end of a process that nobody here asked to end. `code` is negative for a signal; `words` say how it
    ended."""
    if code == 0 or watch.phase is ProcessPhase.DRAINING:
        return watch, Done()
    if not watch.ever_ready:
        return watch, GiveUp(f"it never became ready: {words}")
    if code == USAGE_EXIT:
        return watch, GiveUp(f"a restart would change nothing: {words}")
    return _restart(policy, watch, words)


def _restart(policy: Policy, watch: WatchState, cause: str) -> tuple[WatchState, Decision]:
    if watch.restarts >= policy.restarts:
        return watch, GiveUp(
            f"{watch.restarts} restarts in a row did not help (never well for {policy.healthy_s:g} s); last: {cause}"
        )
    pause = min(policy.pause_s * 2**watch.restarts, policy.longest_pause_s)
    return replace(watch, restarts=watch.restarts + 1, failures=0), Restart(pause, cause)
