"""The harness of the attacks: a real engine under limits, a neighbour beside each attack, and what came of it.

A script is a module of this folder with `run(harness) -> list[Result]`. One attack in it reads so:

    def run(harness: Harness) -> list[Result]:
        with harness.watch("deep bodies", "200 bodies of JSON nested 900 deep") as watch:
            for _ in range(200):
                answer = harness.engine.post("/v1/chat/completions", b'{"stop":' + b"[" * 900 + b"]" * 900 + b"}")
                watch.expect(answer.status == 400, f"status {answer.status}")
        return [watch.result]

- `harness.engine` (`tests/stress/real_engine.py`) has `post`, `get`, `connect`, `head`, `health`, `state_dir`, `key`,
  `admin`, `metrics`, `pid`, `log_path`. `secret=""` sends no key. Each script gets an engine of its own: SmolLM2, three
  slots, windows of 2,048 rows, API keys on, 1,024 descriptors, 3 GiB for it and its children.
- `harness.watch(attack, sent)` starts the neighbour in a process of its own, from an address of its own, and waits for
  its first token. The block is the attack. At its end the neighbour finishes its answer, and `watch.result` says what
  held: every text of the neighbour as it was alone, no gap between its tokens and no `/health` over 1 s, the
  memory under the cap, the engine's process the same and well, its descriptors back.
- `watch.expect(condition, why)` is for what the attack itself must see. An exception in the block is a failure too.
- `watch.note(text)` is shown in the table.
- `harness.another(model=..., arguments=..., environment=...)` gives a harness with an engine of other settings, for the
  block's time: `with harness.another(model=path) as other, other.watch(...) as watch:`. `output=` is a descriptor that
  it gets as stdout and stderr. Raises EngineDied where it does not start.

Bound every attack in count and time, some seconds each; every socket has a timeout already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.stress.attacks.bystander import Config, Seen
from tests.stress.real_engine import GIB, ROOT, EngineDied, MemoryCap, RealEngine, running_engine

__all__ = ["EngineDied", "Harness", "RealEngine", "Result", "Watch", "table"]

LIMIT_S = 1.0
SETTLE_S = 20.0
BYSTANDER_S = 120.0
PROMPT = "The lighthouse keeper opened her notebook and wrote about the storm:"
TOKENS = 160
ARGUMENTS = ("--parallel=3", "--max-len=2048", "--queue-limit=32")


@dataclass
class Result:
    """One attack and what came of it. Times in seconds, memory in bytes."""

    attack: str
    sent: str
    identical: bool = False
    answers: int = 0
    worst_gap_s: float = 0.0
    worst_first_s: float = 0.0
    worst_health_s: float = 0.0
    box_lag_s: float = 0.0
    peak_rss: int = 0
    healthy: bool = False
    descriptors: tuple[int, int] = (0, 0)
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.problems


class Watch:
    """What the block of `Harness.watch` gets; `result` is whole after the block."""

    def __init__(self, attack: str, sent: str) -> None:
        self.result = Result(attack, sent)

    def expect(self, condition: bool, why: str) -> None:
        if not condition and len(self.result.problems) < 10:
            self.result.problems.append(why)

    def note(self, text: str) -> None:
        self.result.notes.append(text)


class Harness:
    """An engine, and the text that the neighbour gets alone."""

    def __init__(self, engine: RealEngine) -> None:
        self.engine = engine
        self.alone = self.ask()
        assert self.ask() == self.alone, "the engine alone does not repeat itself"

    @classmethod
    @contextmanager
    def open(
        cls,
        *,
        model: Path | None = None,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        output: int | None = None,
    ) -> Iterator[Harness]:
        with running_engine(
            model=model, arguments=[*ARGUMENTS, *arguments], environment=environment, output=output
        ) as engine:
            yield cls(engine)

    another = open

    @property
    def cap(self) -> MemoryCap:
        assert self.engine.cap is not None
        return self.engine.cap

    def ask(self) -> str:
        """The neighbour's answer, not streamed."""
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        answer = self.engine.post("/v1/completions", body, timeout_s=BYSTANDER_S)
        if answer.status != 200:
            raise AssertionError(f"a plain request got {answer.status}: {answer.body[:300]!r}")
        text: str = answer.json()["choices"][0]["text"]
        return text

    @contextmanager
    def watch(self, attack: str, sent: str) -> Iterator[Watch]:
        """The neighbour beside the block. Never raises for what the engine did: that is in `watch.result`."""
        watch = Watch(attack, sent)
        pid, before = self.engine.pid, self.engine.descriptors()
        kills = self.cap.kills()
        began = time.monotonic()
        bystander = self._bystander()
        try:
            yield watch
        # An attack that fails is a row of the table, and the next one runs.
        except Exception as why:  # noqa: BLE001
            watch.expect(False, f"{type(why).__name__}: {why}")
        watch.result.took_s = time.monotonic() - began
        try:
            told, _ = bystander.communicate(timeout=BYSTANDER_S)
            self._compare(watch, Seen(**json.loads(told)))
        except (subprocess.TimeoutExpired, ValueError) as why:
            bystander.kill()
            bystander.wait()
            watch.expect(False, f"the neighbour never finished: {type(why).__name__}")
        watch.expect(self.cap.kills() == kills, "the kernel ended a process for its memory")
        self._after(watch, pid, before)

    def _bystander(self) -> subprocess.Popen[str]:
        engine = self.engine
        config = Config(engine.port, engine.pid, engine.key, engine.metrics, PROMPT, TOKENS)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.attacks.bystander", json.dumps(asdict(config))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline().strip() != "streaming":
            process.kill()
            raise AssertionError("the neighbour got no token before the attack began")
        return process

    def _compare(self, watch: Watch, seen: Seen) -> None:
        result = watch.result
        result.answers = sum(seen.texts.values())
        result.identical = set(seen.texts) == {self.alone}
        result.worst_gap_s, result.worst_first_s = seen.worst_gap_s, seen.worst_first_s
        result.worst_health_s, result.box_lag_s = seen.worst_health_s, seen.lag_s
        result.peak_rss = seen.peak_rss
        for failure in seen.failures:
            watch.expect(False, f"neighbour, {failure}")
        for text in seen.texts:
            watch.expect(text == self.alone, f"the neighbour's text differs: {_difference(text, self.alone)}")
        watch.expect(result.answers > 0, "the neighbour had no whole answer")
        watch.expect(seen.worst_gap_s <= LIMIT_S, f"the neighbour waited {seen.worst_gap_s:.2f} s between two tokens")
        watch.expect(seen.worst_health_s <= LIMIT_S, f"/health took {seen.worst_health_s:.2f} s")
        watch.expect(seen.peak_rss <= self.cap.limit, f"{seen.peak_rss / GIB:.2f} GiB resident")
        if seen.refused:
            watch.note(f"neighbour refused {seen.refused} times for want of a place")

    def _after(self, watch: Watch, pid: int, before: int) -> None:
        """The engine once everybody has left: the same process, well, idle, and its descriptors back."""
        engine, result = self.engine, watch.result
        if not engine.alive or engine.pid != pid:
            watch.expect(False, f"the engine's process ended:\n{engine.log_end(600)}")
            return
        deadline = time.monotonic() + SETTLE_S
        try:
            while True:
                health = engine.health()
                # Asking takes a connection, which is gone by now or a moment later.
                now = engine.descriptors()
                idle = health["parallel"]["running"] == 0 and not health["queue"]
                if (idle and now <= before) or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            text = self.ask()
        except (OSError, ValueError, KeyError, AssertionError) as why:
            watch.expect(False, f"afterwards: {type(why).__name__}: {why}")
            return
        result.descriptors = (before, now)
        pool = health["kv_pool"]
        integrity = sum(pool["by_slot"]) == sum(pool["by_kind"].values()) == pool["committed_bytes"]
        result.healthy = health["status"] == "ok" and idle and integrity and text == self.alone
        watch.expect(health["status"] == "ok", f"/health says {health['status']}")
        watch.expect(idle, f"{health['parallel']['running']} run and {len(health['queue'])} wait {SETTLE_S:g} s after")
        watch.expect(integrity, f"the pool's figures disagree: {pool}")
        watch.expect(text == self.alone, f"a text afterwards differs: {_difference(text, self.alone)}")
        watch.expect(now <= before, f"{now} descriptors, before {before}")


def _difference(text: str, alone: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, alone, strict=False)) if a != b), min(len(text), len(alone)))
    return f"{text[at : at + 40]!r} for {alone[at : at + 40]!r} at character {at}"


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| attack | sent | held | neighbour identical | worst gap | worst `/health` | first token | box's own lag "
        "| peak RSS | healthy after | descriptors | took | notes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        notes = "; ".join([*row.problems, *row.notes]).replace("|", "\\|").replace("\n", " ")
        same = f"{'yes' if row.identical else 'NO'} ({row.answers})"
        before, after = row.descriptors
        lines.append(
            f"| {row.attack} | {row.sent} | {'yes' if row.held else 'NO'} | {same} | {row.worst_gap_s:.2f} s "
            f"| {row.worst_health_s:.2f} s | {row.worst_first_s:.2f} s | {row.box_lag_s:.2f} s "
            f"| {row.peak_rss / GIB:.2f} GiB | {'yes' if row.healthy else 'NO'} | {before} -> {after} "
            f"| {row.took_s:.1f} s | {notes} |"
        )
    return "\n".join(lines)
