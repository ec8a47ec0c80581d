"""A day of a busy engine in simulated time: lanes that read, write and end, with figures as uneven as a real one's.

By hand, the size of a day's recording and the time of a seek in it: `python -m tests.support.long_day --hours 24`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from console.history.recorder import Recorder
from console.history.recording import Recording
from engine.protocol import (
    CacheLevel,
    Health,
    Lane,
    LaneRequest,
    LaneState,
    Queued,
    RoundStat,
    Speculation,
    Totals,
    WaitState,
    encode,
)
from tests.support import fake_lanes, fake_scenes
from tests.support.fake_lanes import WINDOW

# The clock started long ago, as a real one's: its steps are coarse and its differences exact.
_BOOT_S = 86_400.123456789
_STARTED_S = _BOOT_S - 81.25
_CLIENTS = ("opencode", "open-webui", "curl", "aider", "claude-code", "日本語クライアント")


@dataclass
class _Turn:
    """One request on its way through a lane. Figures are as the engine gives them: not rounded."""

    id: str
    client: str
    prompt: int
    cached: int
    limit: int
    arrived: float
    rate: float
    read: float
    written: float = 0.0
    ttft_s: float | None = None
    gap_s: float | None = None
    accepted: float = 1.0


@dataclass
class _Rounds:
    count: int = 0
    ms: float = 0.0
    p95: float = 0.0
    tokens: int = 0


@dataclass
class Day:
    """The engine of `slots` lanes, each idle for `pause_s` between requests. Seeded: the same day every time."""

    slots: int = 8
    pause_s: float = 2.0
    seed: int = 7
    _random: random.Random = field(init=False)
    _turns: list[_Turn | None] = field(init=False)
    _free_at: list[float] = field(init=False)
    _resident: list[int] = field(init=False)
    _rounds: dict[int, _Rounds] = field(default_factory=dict)
    _depths: list[int] = field(default_factory=lambda: [0, 0, 0])
    _served: int = 0
    _commits: int = 0
    _outside: int = 4_212_675_008
    _reclaimed_at: float = _BOOT_S

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._turns = [None] * self.slots
        self._free_at = [_BOOT_S + self._random.uniform(0, self.pause_s) for _ in range(self.slots)]
        self._resident = [0] * self.slots

    def snapshots(self, seconds: float, hz: float = 4.0) -> Iterator[tuple[float, Health]]:
        """Each snapshot with its second."""
        for tick in range(int(seconds * hz)):
            at = _BOOT_S + tick / hz + self._random.uniform(0.0, 0.004)
            self._move(at, 1 / hz)
            yield at - _BOOT_S, self._health(at)

    def _begin(self, slot: int, at: float) -> _Turn:
        rand = self._random
        prompt = rand.randint(60, 6000)
        self._commits += 1
        cached = min(prompt - 1, self._resident[slot]) if rand.random() < 0.6 else 0
        return _Turn(
            id=f"req-{rand.getrandbits(32):08x}",
            client=rand.choice(_CLIENTS),
            prompt=prompt,
            cached=cached,
            limit=min(rand.choice((128, 256, 512, 1024)), WINDOW - prompt),
            arrived=at - rand.random() * 0.3,
            rate=rand.uniform(11, 14),
            read=float(cached),
        )

    def _move(self, at: float, step: float) -> None:
        rand = self._random
        writing = 0
        for slot, turn in enumerate(self._turns):
            if turn is None:
                if at >= self._free_at[slot]:
                    self._turns[slot] = self._begin(slot, at)
            elif turn.read < turn.prompt:
                turn.read = min(turn.prompt, turn.read + 256 * rand.randint(0, 1))
            else:
                writing += 1
                self._write(slot, turn, at, step)
        if writing:
            self._count_rounds(writing)
        self._outside += rand.randint(-40, 40) * 4096
        if rand.random() < 0.001:
            self._reclaimed_at = at

    def _write(self, slot: int, turn: _Turn, at: float, step: float) -> None:
        rand = self._random
        if turn.ttft_s is None:
            turn.ttft_s = at - turn.arrived
        turn.rate = max(1.0, turn.rate + rand.gauss(0, 0.15))
        turn.written += turn.rate * step
        turn.gap_s = max(turn.gap_s or 0.0, rand.expovariate(20))
        turn.accepted = 1 + rand.random()
        if turn.written >= turn.limit or rand.random() < 0.002:
            self._resident[slot] = turn.prompt + int(turn.written)
            self._turns[slot] = None
            self._free_at[slot] = at + rand.expovariate(1 / self.pause_s)
            self._served += 1

    def _count_rounds(self, writing: int) -> None:
        rand = self._random
        rounds = self._rounds.setdefault(writing, _Rounds())
        for _ in range(rand.randint(2, 4)):
            rounds.count += 1
            rounds.ms += 60 + 3 * writing + rand.gauss(0, 4)
            rounds.tokens += writing + rand.randint(0, writing)
        rounds.p95 = 70 + 3 * writing + rand.random()
        self._depths = [count + rand.randint(0, writing) for count in self._depths]

    def _lane(self, slot: int, at: float) -> Lane:
        turn = self._turns[slot]
        if turn is None:
            return fake_lanes.lane(slot, resident=self._resident[slot])
        reading = turn.read < turn.prompt
        return fake_lanes.lane(
            slot,
            LaneState.PREFILLING if reading else LaneState.DECODING,
            f"Reading {int(turn.read)} of {turn.prompt} tokens" if reading else f"Writing, {turn.rate:.1f} tok/s",
            rows=int(turn.read) + int(turn.written),
            request=LaneRequest(
                id=turn.id,
                client=turn.client,
                prompt_tokens=turn.prompt,
                cached_tokens=turn.cached,
                completion_tokens=int(turn.written),
                max_tokens=turn.limit,
                ttft_s=turn.ttft_s,
                tok_s=None if reading else turn.rate,
                prefill_done=int(turn.read),
                prefill_total=turn.prompt,
                accepted_per_round=None if reading else turn.accepted,
                age_s=at - turn.arrived,
                queue_s=0.002 * slot,
                worst_gap_s=turn.gap_s,
            ),
        )

    def _queue(self, at: float) -> list[Queued]:
        # One request waits for most of each minute.
        number, since = divmod(at, 60)
        if since < 12:
            return []
        return [
            Queued(
                id=f"req-{int(number):08x}",
                state=WaitState.SLOT,
                reason=f"all {self.slots} slots are busy",
                since_s=at - (number * 60 + 12),
                prompt_tokens=900 + int(number) % 100,
                max_tokens=256,
                home=None,
                client="open-webui",
            )
        ]

    def _health(self, at: float) -> Health:
        asked = at + self._random.random() * 0.2
        body = fake_scenes.health(0.0, [self._lane(slot, at) for slot in range(self.slots)], self._queue(at))
        memory, grown = body.memory, self._outside - body.memory.split.outside
        return replace(
            body,
            uptime_s=asked - _STARTED_S,
            snapshot_age_s=asked - at,
            last_progress_age_s=self._random.random() * 0.02,
            parallel=replace(
                body.parallel,
                rounds={str(rows): rounds.count for rows, rounds in sorted(self._rounds.items())},
                totals=Totals(served=self._served),
            ),
            kv_pool=replace(body.kv_pool, commits=self._commits, releases=self._served),
            memory=replace(
                memory,
                available=memory.available - grown,
                split=replace(memory.split, outside=self._outside),
                ladder=[replace(rung, reclaims=3, last_age_s=at - self._reclaimed_at) for rung in memory.ladder],
            ),
            cache={"resident": CacheLevel(entries=self.slots, hits=self._served, restored_tokens=self._served * 211)},
            roles=[replace(role, since_s=at - _STARTED_S - 0.31) for role in body.roles],
            speculation=Speculation(
                drafters=["lookup"],
                rounds=sum(rounds.count for rounds in self._rounds.values()),
                drafted=3 * sum(self._depths),
                accepted=sum(self._depths),
                accepted_by_depth=list(self._depths),
            ),
            round_stats=[
                RoundStat(
                    rows=rows,
                    rounds=rounds.count,
                    mean_ms=rounds.ms / rounds.count,
                    p95_ms=rounds.p95,
                    tokens_per_round=rounds.tokens / rounds.count,
                    ms_total=rounds.ms,
                )
                for rows, rounds in sorted(self._rounds.items())
            ],
        )


def record(path: Path, seconds: float, *, begin: float = 1_800_000_000.0) -> float:
    """Record a day's first seconds to `path` as fast as it goes; returns the seconds that took."""
    now = begin
    started = time.monotonic()
    with Recorder(path, clock=lambda: now) as recorder:
        for index, (at, health) in enumerate(Day().snapshots(seconds)):
            now = begin + at
            while index - recorder.written > 200:
                time.sleep(0.001)
            recorder.snapshot("http://127.0.0.1:8000", encode(health))
    if recorder.trouble:
        raise OSError(recorder.trouble)
    return time.monotonic() - started


def main() -> None:
    """Record, then seek to random moments, and print both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.out or Path(folder) / "day.tdm"
        took = record(path, options.hours * 3600)
        print(f"{path.stat().st_size / 1e6:.1f} MB for {options.hours:g} h, recorded in {took:.0f} s")
        seeks = []
        rand = random.Random(1)
        with Recording(path) as recording:
            for _ in range(200):
                moment = rand.uniform(recording.begin, recording.end)
                started = time.perf_counter()
                recording.state_at(moment)
                seeks.append(1e3 * (time.perf_counter() - started))
        print(f"seek: p50 {statistics.median(seeks):.1f} ms, p95 {statistics.quantiles(seeks, n=20)[-1]:.1f} ms")


if __name__ == "__main__":
    main()
