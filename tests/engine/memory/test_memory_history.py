"""Pool, ladder, admission and reservations together: a small box on which requests come and go, step by step.

The box's available memory is its size less what the real pool has committed, so every figure that a decision sees is
one that the decisions before it made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.admission import AdmissionView, Admit, Refuse, Reservations, WaitForMemory, admit_with_reclaim
from engine.memory.kv.layout import KvLayout, KvTensor
from engine.memory.kv.pool import KvPool
from engine.memory.pressure import HardFloor, Level, PressureLadder
from engine.memory.probe import HOST, MemoryReading

PAGE = 4096
LAYOUT = KvLayout((KvTensor("engine", 0, "k", 256), KvTensor("engine", 0, "v", 384)))
WINDOW = 400
FLOOR, HARD_FLOOR = 12 * PAGE, 8 * PAGE


@dataclass
class Job:
    name: str
    prompt: int
    max_tokens: int
    keeps: bool
    rows: int = 0

    @property
    def end(self) -> int:
        return self.prompt + self.max_tokens


@dataclass
class Box:
    """Slots, a queue in order of arrival, and one step of work at a time, as an engine's loop would do it."""

    pages: int
    slots: int = 3
    running: dict[int, Job] = field(default_factory=dict)
    queue: deque[Job] = field(default_factory=deque)
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = KvPool(LAYOUT, [WINDOW] * self.slots, margin_rows=8, page_bytes=PAGE)
        self.ledger = Reservations()
        self.ladder = PressureLadder([IdleSlot(self, slot) for slot in range(self.slots - 1, -1, -1)])
        self.pool.guard = HardFloor(self, HARD_FLOOR, self.ladder)

    def read(self) -> MemoryReading:
        total, used = self.pages * PAGE, self.pool.stats().committed_bytes
        return MemoryReading(HOST, total, total - used, used, used)

    def idle_slot(self) -> int | None:
        return next((slot for slot in range(self.slots) if slot not in self.running), None)

    def admit(self) -> None:
        while self.queue and (slot := self.idle_slot()) is not None:
            job = self.queue[0]
            self.pool.release(slot, 0)
            view = AdmissionView(
                need=self.pool.pages_to_commit(slot, job.end),
                available=self.read().available,
                floor=FLOOR,
                hard_floor=HARD_FLOOR,
                running=len(self.running),
                outstanding=self.ledger.outstanding(),
                held_by_running=sum(self.pool.committed_bytes(s) for s in self.running),
                idle=self.ladder.held_bytes(),
                caches=0,
            )
            decision = admit_with_reclaim(view, self.ladder, lambda: self.read().available)
            if isinstance(decision, WaitForMemory):
                self.waits.append(decision.reason)
                return
            self.queue.popleft()
            if isinstance(decision, Refuse):
                self.refused.append(job.name)
                continue
            assert isinstance(decision, Admit)
            self.ledger.reserve(slot, decision.need)
            self.running[slot] = job

    def step(self, slot: int) -> None:
        job = self.running[slot]
        job.rows = min(job.end, job.rows + (64 if job.rows < job.prompt else 9))
        self.ledger.credit(slot, self.pool.commit(slot, job.rows))
        if job.rows == job.end:
            self.leave(slot)
            self.done.append(job.name)

    def leave(self, slot: int) -> None:
        job = self.running.pop(slot)
        self.ledger.release(slot)
        self.pool.release(slot, job.rows if job.keeps else 0)

    def check(self) -> None:
        self.pool.check_integrity()
        available = self.read().available
        assert available >= HARD_FLOOR
        if len(self.running) > 1:
            assert available - self.ledger.outstanding() >= FLOOR


@dataclass
class IdleSlot:
    box: Box
    slot: int
    level: Level = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"slot {self.slot}'s idle conversation"
        self.level = Level.SIDE_CONVERSATION if self.slot else Level.MAIN_CONVERSATION

    def held_bytes(self) -> int:
        return 0 if self.slot in self.box.running else self.box.pool.committed_bytes(self.slot)

    def reclaim(self, need: int) -> int:
        return self.box.pool.release(self.slot, 0)


def pages_of(rows: int) -> int:
    return sum(-(-rows * tensor.row_bytes // PAGE) for tensor in LAYOUT.tensors)


def test_two_long_requests_on_a_pool_for_one_and_a_half():
    long = pages_of(308)
    box = Box(pages=12 + long + long // 2)
    box.queue.extend([Job("a", 200, 100, keeps=False), Job("b", 200, 100, keeps=False)])
    box.admit()
    assert [job.name for job in box.running.values()] == ["a"]
    assert len(box.waits) == 1
    assert box.waits[0].startswith("memory is almost full, this request may take ")
    while box.running:
        for slot in list(box.running):
            box.step(slot)
            box.check()
        box.admit()
    assert box.done == ["a", "b"]
    box.pool.check_integrity(deep=True)
    assert box.pool.stats().committed_bytes == 0
    box.pool.close()


def test_an_idle_conversation_makes_room_before_anyone_waits():
    box = Box(pages=12 + 2 * pages_of(308))
    box.queue.append(Job("old", 200, 100, keeps=True))
    box.admit()
    while box.running:
        box.step(0)
    assert box.pool.committed_bytes(0) == PAGE * pages_of(300)
    # Slot 0 holds the old conversation; another request runs on slot 1 while a third comes for slot 2.
    box.running[1] = Job("b", 200, 100, keeps=False)
    box.ledger.reserve(1, box.pool.pages_to_commit(1, 300))
    view = AdmissionView(
        need=box.pool.pages_to_commit(2, 300),
        available=box.read().available,
        floor=FLOOR,
        hard_floor=HARD_FLOOR,
        running=1,
        outstanding=box.ledger.outstanding(),
        held_by_running=0,
        idle=box.ladder.held_bytes(),
        caches=0,
    )
    assert isinstance(admit_with_reclaim(view, box.ladder, lambda: box.read().available), Admit)
    assert box.pool.committed_bytes(0) == 0
    box.pool.close()


def test_two_hundred_prompts_leave_what_they_reported_and_nothing_when_idle():
    box = Box(pages=200)
    for number in range(200):
        box.queue.append(Job(str(number), 10 + number, 20, keeps=number % 3 == 0))
        box.admit()
        for slot in list(box.running):
            box.step(slot)
        box.check()
    while box.queue or box.running:
        for slot in list(box.running):
            box.step(slot)
        box.admit()
        box.check()
    box.pool.check_integrity(deep=True)
    assert box.pool.stats().peak_committed_bytes <= 200 * PAGE - HARD_FLOOR
    box.ladder.relieve(200 * PAGE, "a test asked")
    box.pool.check_integrity(deep=True)
    assert box.pool.stats().committed_bytes == 0
    assert len(box.done) == 200
    box.pool.close()


jobs = st.builds(Job, name=st.just(""), prompt=st.integers(1, 300), max_tokens=st.integers(1, 90), keeps=st.booleans())


@settings(max_examples=60, deadline=None)
@given(pages=st.integers(10, 260), arrivals=st.lists(jobs, max_size=12), data=st.data())
def test_whatever_comes_nobody_admitted_is_refused_pages_and_everyone_ends(pages, arrivals, data):
    """An admitted request gets every page it was promised (a refused commit would raise), the floors hold, and the
    queue always moves on: each request is served, refused or cancelled."""
    box = Box(pages)
    for number, job in enumerate(arrivals):
        job.name = str(number)
    left: list[str] = []
    waiting = deque(arrivals)
    for _ in range(20_000):
        if waiting and (not box.running or data.draw(st.booleans())):
            box.queue.append(waiting.popleft())
        box.admit()
        box.check()
        assert box.running or not box.queue
        if not box.running:
            if not waiting:
                break
            continue
        slot = data.draw(st.sampled_from(sorted(box.running)))
        if data.draw(st.integers(0, 11)) == 0:
            left.append(box.running[slot].name)
            box.leave(slot)
        else:
            box.step(slot)
        box.check()
    assert sorted(box.done + box.refused + left, key=int) == [str(n) for n in range(len(arrivals))]
    box.pool.close()
