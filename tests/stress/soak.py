"""Soaks one engine with mixed work: `python -m tests.stress.soak [MINUTES] [--seed N] [--json FILE]`, 30 by default.

Workers ask at once for short and long prompts, greedy and sampled, streamed and not, continue conversations, leave,
send bodies that are wrong, and poll every page. Each text must be the one that the same request got alone, before the
soak. Every `LOOK_S` the engine's figures must add up: KV pages by slot and by kind, the memory's split, no defect. At
the end the engine must be idle with the descriptors it began with, and its resident memory within 5 % of what it was
after five minutes (or after a third of a shorter soak); KV pages are taken off both, since they come and go with the
conversations and are checked by themselves. Prints a report; exits 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.stress.real_engine import GIB, Answer, RealEngine, running_engine

MARK_S = 300.0
LOOK_S = 5.0
FLAT = 1.05
WINDOW_S = 120.0
"""The memory of a moment is the median of the looks in this time before it, or in a sixth of a shorter soak."""

SPLIT_BYTES, SPLIT_SHARE = 128 << 20, 0.02
PROBLEMS = 30
SETTLE_S = 30.0
MIB = 1 << 20
ARGUMENTS = ("--parallel=4", "--max-len=4096", "--queue-limit=64")
PAGES = ("/health", "/metrics", "/slots", "/v1/models", "/v1/status", "/admin/requests?limit=20", "/admin/log")
WRONG: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b'{"prompt": ' + b"[" * 400 + b"]" * 400 + b"}",
    b'{"prompt": "hi", "max_tokens": -5}',
    b'{"prompt": "hi", "temperature": 1e999}',
    b'{"prompt": "hi", "logit_bias": {"x": "y"}}',
    b'{"prompt": 7}',
    json.dumps({"prompt": "too long, " * 4000}).encode(),
)


@dataclass(frozen=True)
class Catalogue:
    """Every request that is asked, each with the text that it got alone. Conversations are asked turn by turn."""

    single: list[tuple[dict[str, Any], str]]
    conversations: list[list[tuple[dict[str, Any], str]]]


@dataclass
class Report:
    minutes: float
    seed: int
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    texts: int = 0
    looks: int = 0
    mark_rss: int = 0
    end_rss: int = 0
    mark_own: int = 0
    end_own: int = 0
    peak_rss: int = 0
    threads: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    worst_split: float = 0.0
    totals: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0

    def fields(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        with self._lock:
            self.sent[what] += 1

    def problem(self, what: str) -> None:
        with self._lock:
            self.problem_count += 1
            if len(self.problems) < PROBLEMS:
                self.problems.append(what)

    def check(self, holds: bool, why: str) -> None:
        if not holds:
            self.problem(why)


class Soak:
    def __init__(self, engine: RealEngine, minutes: float, seed: int) -> None:
        self.engine = engine
        self.report = Report(minutes, seed)
        self._catalogue = _catalogue(engine)
        self._over = threading.Event()

    def run(self) -> Report:
        health, descriptors = self._settled()
        before = health["parallel"]["totals"]
        jobs: list[Callable[[random.Random], None]] = [self._single, self._single, self._single]
        jobs += [self._conversation, self._conversation, self._leave, self._wrong, self._page, self._page]
        workers = [threading.Thread(target=self._work, args=(i, job)) for i, job in enumerate(jobs)]
        for worker in workers:
            worker.start()
        try:
            self._watch()
        finally:
            self._over.set()
            for worker in workers:
                worker.join()
        self._end(before, descriptors)
        return self.report

    def _work(self, number: int, job: Callable[[random.Random], None]) -> None:
        draw = random.Random(self.report.seed * 1000 + number)
        while not self._over.is_set():
            try:
                job(draw)
            except (OSError, ValueError, KeyError) as why:
                self.report.problem(f"{job.__name__}: {type(why).__name__}: {why}")
                self._over.wait(1.0)

    # What the workers do.

    def _single(self, draw: random.Random) -> None:
        body, alone = draw.choice(self._catalogue.single)
        self._compare(body, alone, stream=draw.random() < 0.5)

    def _conversation(self, draw: random.Random) -> None:
        for body, alone in draw.choice(self._catalogue.conversations):
            self._compare(body, alone, stream=draw.random() < 0.5)

    def _compare(self, body: dict[str, Any], alone: str, *, stream: bool) -> None:
        answer = self.engine.post("/v1/completions", {**body, "stream": stream}, timeout_s=120.0)
        self.report.count("streams" if stream else "answers")
        if answer.status != 200:
            self.report.problem(f"status {answer.status} for a good request: {answer.body[:200]!r}")
            return
        text = _streamed_text(answer) if stream else answer.json()["choices"][0]["text"]
        self.report.check(text == alone, f"a text differs from alone: {body['prompt'][-60:]!r}: {text[:80]!r}")
        with self.report._lock:
            self.report.texts += 1

    def _leave(self, draw: random.Random) -> None:
        body, _ = draw.choice(self._catalogue.single)
        data = json.dumps({**body, "max_tokens": 400, "stream": draw.random() < 0.7}).encode()
        with self.engine.connect() as connection:
            connection.sendall(self.engine.head("POST", "/v1/completions", length=len(data)) + data)
            self._over.wait(draw.uniform(0.0, 2.0))
        self.report.count("left")

    def _wrong(self, draw: random.Random) -> None:
        path = draw.choice(("/v1/completions", "/v1/chat/completions"))
        answer = self.engine.post(path, draw.choice(WRONG), secret=draw.choice((None, None, None, "wrong", "")))
        self.report.count("wrong bodies")
        self.report.check(400 <= answer.status < 500, f"status {answer.status} for a wrong body: {answer.body[:200]!r}")
        self._over.wait(0.3)

    def _page(self, draw: random.Random) -> None:
        page = draw.choice(PAGES)
        answer = self.engine.get(page, secret=self.engine.key if page.startswith("/v1/") else self.engine.admin)
        self.report.count("polls")
        self.report.check(answer.status == 200, f"{page}: status {answer.status}")
        self._over.wait(0.25)

    # What is looked at beside them.

    def _watch(self) -> None:
        report, engine = self.report, self.engine
        total = report.minutes * 60
        mark = min(MARK_S, total / 3)
        began = time.monotonic()
        window = max(1, int(min(WINDOW_S, total / 6) / LOOK_S))
        resident: list[int] = []
        own: list[int] = []
        threads = 0
        while (at := time.monotonic() - began) < total:
            self._over.wait(min(LOOK_S, total - at))
            if not engine.alive:
                report.problem(f"the engine's process ended:\n{engine.log_end(800)}")
                return
            health = engine.health()
            resident.append(engine.rss())
            own.append(resident[-1] - health["kv_pool"]["committed_bytes"])
            if at < mark:
                threads = max(threads, engine.threads())
                report.mark_rss = int(statistics.median(resident[-window:]))
                report.mark_own = int(statistics.median(own[-window:]))
            self._look(health)
            print(
                f"{at / 60:.1f} min: {resident[-1] / MIB:.0f} MiB, {engine.descriptors()} descriptors, "
                f"{engine.threads()} threads, {report.texts} texts, {report.problem_count} problems",
                file=sys.stderr,
                flush=True,
            )
        report.end_rss = int(statistics.median(resident[-window:]))
        report.end_own = int(statistics.median(own[-window:]))
        report.peak_rss = max(resident)
        report.threads = (threads, engine.threads())

    def _look(self, health: dict[str, Any]) -> None:
        report, pool, memory = self.report, health["kv_pool"], health["memory"]
        report.looks += 1
        figures = {sum(pool["by_slot"]), sum(pool["by_kind"].values()), pool["committed_bytes"]}
        figures.add(pool["committed_pages"] * pool["page_bytes"])
        report.check(len(figures) == 1, f"KV pages do not add up: {pool}")
        report.check(health["defect"] is None, f"the engine names a defect: {health['defect']}")
        report.check(health["status"] == "ok", f"/health says {health['status']}")
        report.check(health["ledger"]["defect"] is None, f"ledger: {health['ledger']['defect']}")
        used, parts = memory["total"] - memory["available"], sum(memory["split"].values())
        allowed = max(SPLIT_BYTES, int(used * SPLIT_SHARE))
        report.worst_split = max(report.worst_split, abs(used - parts) / allowed)
        report.check(
            abs(used - parts) <= allowed, f"the memory's split says {parts:,}, total - available is {used:,}: {memory}"
        )

    def _settled(self, descriptors: int | None = None) -> tuple[dict[str, Any], int]:
        """The figures and the open descriptors once nothing runs and no more than `descriptors` are open, or after
        `SETTLE_S`."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            # The figures of an end come a moment after its last byte.
            time.sleep(0.5)
            health, now = self.engine.health(), self.engine.descriptors()
            few = descriptors is None or now <= descriptors
            if (_idle(health) and few) or time.monotonic() > deadline:
                return health, now

    def _end(self, before: dict[str, int], descriptors: int) -> None:
        report, engine = self.report, self.engine
        if not engine.alive:
            return
        health, now = self._settled(descriptors)
        idle = _idle(health)
        self._look(health)
        report.descriptors = (descriptors, now)
        report.check(idle, f"requests run or wait {SETTLE_S:g} s after the last client left")
        report.check(now <= descriptors, f"{now} descriptors at the end, {descriptors} before")
        report.check(report.threads[1] <= report.threads[0], f"threads grew from {report.threads}")
        grown = report.end_own / max(1, report.mark_own)
        report.check(grown <= FLAT, f"resident memory grew to {grown:.3f} of what it was after the first minutes")
        totals = health["parallel"]["totals"]
        report.totals = {name: totals[name] - before[name] for name in totals}
        ended = report.totals["served"] + report.totals["abandoned"]
        whole, left = report.texts, report.sent["left"]
        report.check(report.totals["errors"] == 0, f"{report.totals['errors']} requests ended in an error")
        report.check(report.totals["served"] >= whole, f"{whole} whole answers, {report.totals['served']} served")
        report.check(ended <= whole + left, f"{ended} requests ended, {whole} came whole and {left} left")
        for body, alone in self._catalogue.single[:3]:
            self._compare(body, alone, stream=False)


def _idle(health: dict[str, Any]) -> bool:
    return health["parallel"]["running"] == 0 and not health["queue"]


def _catalogue(engine: RealEngine) -> Catalogue:
    """Ask for everything once, alone."""
    story = "The keeper climbed the stairs, lit the lamp and wrote down what the sea had brought. "
    prompts = [
        "Write about a storm:",
        "List five birds:",
        "def fibonacci(n):",
        "Дорогой друг,",
        "In the year 1820",
        f"Summarise: {story * 12}",
        f"Continue: {story * 45}",
        f"Explain: {story * 100}",
    ]
    bodies: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        tokens = (5, 24, 60, 120)[number % 4]
        bodies.append({"prompt": prompt, "max_tokens": tokens, "temperature": 0})
        bodies.append({"prompt": prompt, "max_tokens": tokens, "temperature": 0.9, "seed": 40 + number})
    bodies.append({"prompt": prompts[0], "max_tokens": 40, "temperature": 1.2, "top_p": 0.8, "top_k": 30, "seed": 7})
    single = [(body, _alone(engine, body)) for body in bodies]
    conversations = []
    for opening in ("My day began with", "Question: what is a lighthouse? Answer:", "Once there was a fisherman"):
        turns: list[tuple[dict[str, Any], str]] = []
        prompt = opening
        for further in ("\nAnd then?", "\nWho said so?", "\nHow did it end?"):
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0}
            turns.append((body, _alone(engine, body)))
            prompt += turns[-1][1] + further
        conversations.append(turns)
    return Catalogue(single, conversations)


def _alone(engine: RealEngine, body: dict[str, Any]) -> str:
    text: str = engine.post("/v1/completions", body, timeout_s=120.0).json()["choices"][0]["text"]
    return text


def _streamed_text(answer: Answer) -> str:
    """The text of a stream, read whole; ValueError where it has no end."""
    lines = answer.body.split(b"\n")
    if b"data: [DONE]" not in [line.strip() for line in lines]:
        raise ValueError("a stream ended before [DONE]")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["text"] for event in events if event.get("choices"))


def show(report: Report) -> str:
    sent = ", ".join(f"{count:,} {what}" for what, count in sorted(report.sent.items()))
    whole, own = report.end_rss / max(1, report.mark_rss), report.end_own / max(1, report.mark_own)
    lines = [
        f"Soak of {report.minutes:g} minutes, seed {report.seed}: {'held' if not report.problem_count else 'FAILED'}.",
        f"- Sent: {sent}.",
        f"- Texts compared with alone: {report.texts:,}.",
        f"- Figures looked at: {report.looks} times; the split's worst error was {report.worst_split:.0%} of what is "
        "allowed (2 % or 128 MiB).",
        f"- Resident without KV pages: {report.mark_own / MIB:.0f} MiB after the first minutes, "
        f"{report.end_own / MIB:.0f} MiB at the end ({own:.3f}). With them: {report.mark_rss / MIB:.0f} and "
        f"{report.end_rss / MIB:.0f} MiB ({whole:.3f}), peak {report.peak_rss / GIB:.2f} GiB.",
        f"- Descriptors: {report.descriptors[0]} before, {report.descriptors[1]} after. Threads: at most "
        f"{report.threads[0]} in the first minutes, {report.threads[1]} at the end.",
        f"- The engine counted: {', '.join(f'{name} {count:,}' for name, count in report.totals.items())}.",
        *(f"- PROBLEM {problem}" for problem in report.problems),
    ]
    if report.problem_count > len(report.problems):
        lines.append(f"- {report.problem_count - len(report.problems)} more problems")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    asked = parser.parse_args()
    with running_engine(arguments=ARGUMENTS) as engine:
        report = Soak(engine, asked.minutes, asked.seed).run()
    print(show(report))
    if asked.json is not None:
        asked.json.write_text(json.dumps(report.fields(), indent=2) + "\n")
    return 1 if report.problem_count else 0


if __name__ == "__main__":
    sys.exit(main())
