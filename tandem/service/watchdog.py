"""Decides when a service's engine is restarted and when that is given up: pure functions over what was seen of it.

The supervisor feeds in a probe every few seconds and the end of each process, with the time of its own clock; what
comes back is the new state and one decision. Nothing here sleeps, signals or asks anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec


class Seen(StrEnum):
    """What one probe found."""

    OK = "ok"
    LOADING = "loading"
    DRAINING = "draining"
    STUCK = "stuck"
    """It answers, and its engine thread does not move."""
    SILENT = "silent"
    """No answer within the probe's time."""


class Phase(StrEnum):
    """What the process was last known to do."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds, times in seconds.

    `probe_s` lies between two probes and an answer may take `answer_s`, so a slow engine is a healthy one. `failures`
    probes in a row without a good answer make a serving engine hung. One that loads or drains may say so for as long
    as it likes; without a word it is hung after `silent_load_s` or `silent_drain_s`, which are longer than any compiler
    run or drain. The pause before a restart is `pause_s`, doubled with each up to `longest_pause_s`; after `restarts`
    of them without `healthy_s` of good answers in between, the next failure is the last.
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


@dataclass(frozen=True, slots=True)
class Watch:
    """What is remembered of a service.

    `heard_at` is the last good answer of this process, or its start. `healthy_since` is the first of an unbroken row of
    good answers. `restarts` counts those since the engine was last healthy for long.
    """

    heard_at: float
    phase: Phase = Phase.STARTING
    ever_ready: bool = False
    failures: int = 0
    healthy_since: float | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Nothing:
    """Leave it alone."""


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
class Finished:
    """The engine ended because it was told to."""


Decision = Nothing | Restart | GiveUp | Finished

USAGE_EXIT = 2
"""An engine that ends so was told something that no restart changes."""


def started(watch: Watch | None, now: float) -> Watch:
    """The watch over a new process, the first or the next."""
    if watch is None:
        return Watch(heard_at=now)
    return replace(watch, heard_at=now, phase=Phase.STARTING, failures=0, healthy_since=None)


def probed(policy: Policy, watch: Watch, now: float, seen: Seen, detail: str = "") -> tuple[Watch, Decision]:
    """Judge a probe of the running process. `detail` says in words what went wrong with it."""
    if seen is Seen.OK:
        since = now if watch.healthy_since is None else watch.healthy_since
        restarts = 0 if now - since >= policy.healthy_s else watch.restarts
        return Watch(now, Phase.SERVING, True, 0, since, restarts), Nothing()
    if seen in (Seen.LOADING, Seen.DRAINING):
        phase = Phase.STARTING if seen is Seen.LOADING else Phase.DRAINING
        return replace(watch, heard_at=now, phase=phase, failures=0, healthy_since=None), Nothing()
    watch = replace(watch, healthy_since=None)
    patience = {Phase.STARTING: policy.silent_load_s, Phase.DRAINING: policy.silent_drain_s, Phase.SERVING: 0.0}
    if now - watch.heard_at < patience[watch.phase]:
        return watch, Nothing()
    watch = replace(watch, failures=watch.failures + 1)
    if watch.failures < policy.failures:
        return watch, Nothing()
    return _again(policy, watch, f"hung: {watch.failures} probes in a row failed, the last one: {detail or seen.value}")


def exited(policy: Policy, watch: Watch, code: int, words: str) -> tuple[Watch, Decision]:
    """Judge the end of a process that nobody here asked to end. `code` is negative for a signal; `words` say how it
    ended."""
    if code == 0 or watch.phase is Phase.DRAINING:
        return watch, Finished()
    if not watch.ever_ready:
        return watch, GiveUp(f"it never became ready: {words}")
    if code == USAGE_EXIT:
        return watch, GiveUp(f"a restart would change nothing: {words}")
    return _again(policy, watch, words)


def _again(policy: Policy, watch: Watch, cause: str) -> tuple[Watch, Decision]:
    if watch.restarts >= policy.restarts:
        return watch, GiveUp(
            f"{watch.restarts} restarts in a row did not help (never well for {policy.healthy_s:g} s); last: {cause}"
        )
    pause = min(policy.pause_s * 2**watch.restarts, policy.longest_pause_s)
    return replace(watch, restarts=watch.restarts + 1, failures=0), Restart(pause, cause)
