"""Kills an engine under load and starts it again on the same state directory: `python -m tests.stress.kills [COUNT]`.

Several clients ask for short and long answers, streamed and not, and leave some. SIGKILL comes at a random moment of
the load (`--seed`), every fifth time while the engine still starts. After each kill: the lock is free, a copy of the
ledger passes SQLite's integrity check and holds a row for every answer that a client had whole `OLD_S` before the kill,
the engine starts again, its ledger is written, and a greedy text is the one from before. Exits 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from engine.process.ledger.store import FILE_NAME
from engine.process.state_dir import is_locked, read_record
from tests.stress.real_engine import MemoryCap, RealEngine, read_answer

OLD_S = 0.5
CLIENTS = 6
ANSWERS = (5, 40)
ANSWERS_S = 20.0
LOAD_S = (0.0, 1.0)
"""A kill comes so long after so many answers."""

START_S = (0.1, 1.5)
STARTING_EVERY = 5
ARGUMENTS = ("--parallel=3", "--max-len=2048", "--queue-limit=32")
QUESTION = {"prompt": "The lighthouse keeper opened her notebook:", "max_tokens": 40, "temperature": 0}


@dataclass
class Load:
    """Clients that ask until they are told to stop. `ended`: the id of each answer that came whole, and when
    (monotonic seconds)."""

    engine: RealEngine
    seed: int
    ended: dict[str, float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _came: threading.Condition = field(default_factory=threading.Condition)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, answers: int) -> None:
        """Until so many answers have come, or for `ANSWERS_S`."""
        with self._came:
            self._came.wait_for(lambda: len(self.ended) >= answers, timeout=ANSWERS_S)

    def _ask(self, number: int) -> None:
        draw = random.Random(self.seed * CLIENTS + number)
        while not self._over.is_set():
            body = json.dumps(
                {
                    "prompt": f"Client {number} says: " + "a word and another, " * draw.choice((1,) * 9 + (40,)),
                    "max_tokens": draw.choice((1, 1, 2, 4, 8, 60)),
                    "temperature": draw.choice((0, 1.0)),
                    "stream": draw.random() < 0.5,
                }
            ).encode()
            try:
                with self.engine.connect() as connection:
                    connection.sendall(self.engine.head("POST", "/v1/completions", length=len(body)) + body)
                    if draw.random() < 0.1:
                        connection.recv(100)
                        continue
                    answer = read_answer(connection)
            except OSError:
                self._over.wait(0.05)
                continue
            now = time.monotonic()
            whole = b"[DONE]" in answer.body or answer.body.endswith(b"}")
            if answer.status == 200 and whole:
                with self._came:
                    self.ended[answer.header("x-request-id")] = now
                    self._came.notify_all()


@dataclass
class Tally:
    kills: int = 0
    starting: int = 0
    answers: int = 0
    old: int = 0
    young: int = 0
    young_lost: int = 0
    oldest_lost_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tandem-kills-"))
    cap = MemoryCap()
    engine = RealEngine(folder, arguments=ARGUMENTS, cap=cap)
    tally, began = Tally(), time.monotonic()
    try:
        _run(engine, asked.count, random.Random(asked.seed), tally)
    finally:
        engine.kill()
        cap.remove()
        shutil.rmtree(folder, ignore_errors=True)
    took = time.monotonic() - began
    print(
        f"{tally.kills} kills ({tally.starting} while starting) in {took:.0f} s, seed {asked.seed}: {tally.answers} "
        f"answers, {tally.old} of them older than {OLD_S:g} s at their kill; of {tally.young} younger ones the ledger "
        f"misses {tally.young_lost}, the oldest {tally.oldest_lost_s:.2f} s old"
    )
    for problem in tally.problems:
        print(f"PROBLEM {problem}")
    print(f"{len(tally.problems)} problems")
    return 1 if tally.problems else 0


def _run(engine: RealEngine, count: int, draw: random.Random, tally: Tally) -> None:
    engine.start()
    alone = _text(engine)
    kept: set[str] = set()
    for number in range(1, count + 1):
        starting = number % STARTING_EVERY == 0
        load = Load(engine, seed=draw.randrange(1 << 30))
        if starting:
            engine.stop()
            engine.spawn()
            time.sleep(draw.uniform(*START_S))
        else:
            load.start()
            load.wait(draw.randint(*ANSWERS))
            time.sleep(draw.uniform(*LOAD_S))
        killed = time.monotonic()
        engine.kill()
        load.stop()
        tally.kills += 1
        tally.starting += starting
        kept |= _check_ledger(engine, load, killed, kept, tally, number)
        if is_locked(engine.state_dir) or read_record(engine.state_dir) is not None:
            tally.problems.append(f"kill {number}: the state directory is still held")
        engine.start()
        defect = engine.health()["ledger"]["defect"]
        if defect is not None:
            tally.problems.append(f"kill {number}: the ledger is not written: {defect}")
        if _text(engine) != alone:
            tally.problems.append(f"kill {number}: a greedy text differs")
        print(f"kill {number}: {len(load.ended)} answers", file=sys.stderr, flush=True)
    drafts = [path.name for path in engine.state_dir.iterdir() if path.suffix == ".new"]
    if drafts:
        tally.problems.append(f"left in the state directory: {', '.join(drafts)}")


def _check_ledger(engine: RealEngine, load: Load, killed: float, kept: set[str], tally: Tally, number: int) -> set[str]:
    """Read a copy as the kill left it, so that it is the engine that recovers the file itself; the ids found."""
    with tempfile.TemporaryDirectory() as copy:
        for path in engine.state_dir.glob(f"{FILE_NAME}*"):
            shutil.copy2(path, copy)
        with closing(sqlite3.connect(Path(copy) / FILE_NAME)) as ledger:
            well = ledger.execute("PRAGMA integrity_check").fetchone()[0]
            rows = {row for (row,) in ledger.execute("SELECT id FROM requests")}
    if well != "ok":
        tally.problems.append(f"kill {number}: integrity check: {well}")
    if lost := kept - rows:
        tally.problems.append(f"kill {number}: {len(lost)} rows of earlier runs are gone")
    for request, ended in load.ended.items():
        age = killed - ended
        if age < 0:
            # The last bytes were on their way when the kill came.
            age = 0.0
        tally.answers += 1
        if age > OLD_S:
            tally.old += 1
        else:
            tally.young += 1
        if request in rows:
            continue
        tally.oldest_lost_s = max(tally.oldest_lost_s, age)
        if age > OLD_S:
            tally.problems.append(f"kill {number}: {request}, {age:.2f} s old, is not in the ledger")
        else:
            tally.young_lost += 1
    return rows


def _text(engine: RealEngine) -> str:
    text: str = engine.post("/v1/completions", QUESTION).json()["choices"][0]["text"]
    return text


if __name__ == "__main__":
    sys.exit(main())
