"""An engine that plays scripts: an EnginePort for tests of whoever embeds one, with a byte tokenizer and no weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.api import MetersView, ServedModel
from engine.core.meters import Meters
from engine.models.text.interfaces import ChatPrompt
from engine.process.ledger.reader import LedgerReader
from engine.protocol import (
    CacheLevel,
    Health,
    KvPool,
    Lane,
    LaneRequest,
    LaneState,
    Memory,
    MemorySplit,
    Model,
    Parallel,
    Queued,
    SideDisk,
    Speculation,
    Status,
    Totals,
    WaitState,
    WeightFormat,
    Weights,
)
from engine.request import (
    Admitted,
    Done,
    Ending,
    Event,
    EventSink,
    Failed,
    Finished,
    FinishReason,
    PrefillProgress,
    Request,
    RequestError,
    Text,
)
from tests.support.patience import LONG_S

BOS, EOS = 256, 257
MAX_LEN = 2048


class ByteTokenizer:
    """One token a byte, and two control tokens."""

    vocab_size = 258
    eos_ids = frozenset({EOS})
    bos_id: int | None = BOS

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    def prompt_ids(self, text: str, *, special: bool = False) -> list[int]:
        return [BOS, *self.encode(text)[3:]] if special and text.startswith("<s>") else self.encode(text)

    def control_token(self, spelling: str) -> int | None:
        return {"<s>": BOS, "</s>": EOS}.get(spelling)

    def least_tokens(self, text: str) -> int:
        return len(text) // 2

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BOS else b""

    def token_text(self, token: int) -> str:
        return {BOS: "<s>", EOS: "</s>"}.get(token) or bytes([token]).decode(errors="replace")


@dataclass
class PlainTemplate:
    """`role: content` lines; keeps what it was last given. A system message that is not the first is refused."""

    tokenizer: ByteTokenizer
    calls: list[dict[str, Any]] = field(default_factory=list)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        if any(message["role"] == "system" for message in messages[1:]):
            raise RequestError(
                "messages: system must come first", status=400, code="template_refused", param="messages"
            )
        self.calls.append(
            {
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "extra": extra,
            }
        )
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        if add_generation_prompt:
            text += "\nassistant: "
        return ChatPrompt(tuple(self.tokenizer.encode(text)), first_user_end=0)


@dataclass
class Ticket:
    """One submitted request as its script sees it; `cancelled` is set when the client left."""

    request: Request
    sink: EventSink
    cancelled: threading.Event = field(default_factory=threading.Event)
    ending: Ending | None = None

    def put(self, *events: Event) -> None:
        for event in events:
            self.sink.put(event)

    def finish(self, *texts: str, reason: FinishReason = FinishReason.STOP, cached: int = 0) -> None:
        """Every choice says the texts and ends."""
        request = self.request
        for choice in range(request.n):
            self.put(*(Text(choice, text, 1) for text in texts))
            self.put(Finished(choice, reason, len(texts)))
        self.put(Done(len(request.prompt), cached, len(texts) * request.n))


Script = Callable[[Ticket], None]


def say_hello(ticket: Ticket) -> None:
    """Admission, the whole prompt read, and two pieces of text for every choice."""
    request = ticket.request
    total = len(request.prompt)
    ticket.put(Admitted(0, 0, request.max_tokens or MAX_LEN - total), PrefillProgress(total, total))
    ticket.finish("Hello", " world")


class ScriptedEngine:
    """Plays `script` for every request, each on a thread of its own (an EnginePort)."""

    def __init__(self, script: Script = say_hello, *, name: str = "scripted") -> None:
        self._first_script = script
        self._name = name
        self.tokenizer = ByteTokenizer()
        self.reset()

    def reset(self) -> None:
        """As new: nothing submitted, the first script, an idle snapshot."""
        self.script = self._first_script
        self.template = PlainTemplate(self.tokenizer)
        self.model: ServedModel | None = ServedModel(self._name, 1_700_000_000, MAX_LEN, self.tokenizer, self.template)
        self.snapshot = idle_health()
        self.refusal: RequestError | None = None
        self.tickets: list[Ticket] = []
        self.refused: list[tuple[str, str, RequestError]] = []
        self.draining = False
        self.measured = Meters()
        self.ledger: LedgerReader | None = None

    def refuse(self, request_id: str, client: str, error: RequestError) -> None:
        self.refused.append((request_id, client, error))

    def submit(self, request: Request, sink: EventSink) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.draining:
            raise RequestError("the engine is draining", status=503, code="draining", retry_after=5)
        if len(request.prompt) >= MAX_LEN:
            raise RequestError(
                f"prompt has {len(request.prompt)} tokens, the window holds {MAX_LEN}",
                status=400,
                code="context_length_exceeded",
            )
        ticket = Ticket(request, sink)
        self.tickets.append(ticket)
        threading.Thread(target=self.script, args=(ticket,), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        for ticket in self.tickets:
            if ticket.request.id == request_id:
                ticket.cancelled.set()

    def end(self, request_id: str, error: RequestError, ending: Ending) -> None:
        for ticket in self.tickets:
            if ticket.request.id == request_id:
                ticket.cancelled.set()
                ticket.ending = ending
                ticket.put(Failed(error))

    def health(self) -> Health:
        return self.snapshot

    def meters(self) -> MetersView:
        return self.measured.view()

    def drain(self) -> bool:
        begins, self.draining = not self.draining, True
        self.snapshot = msgspec.structs.replace(self.snapshot, status=Status.DRAINING)
        return begins

    def resume(self) -> bool:
        ends, self.draining = self.draining, False
        self.snapshot = msgspec.structs.replace(self.snapshot, status=Status.OK)
        return ends

    @property
    def last(self) -> Request:
        return self.tickets[-1].request


def idle_lane(slot: int) -> Lane:
    return Lane(
        slot=slot,
        kind="side" if slot else "main",
        window=MAX_LEN,
        state=LaneState.IDLE,
        reason=None,
        phase_text="Idle",
        rows=0,
        committed_rows=0,
        resident_rows=0,
        committed_bytes=0,
        request=None,
    )


def idle_health(slots: int = 2) -> Health:
    """A loaded engine with nothing to do."""
    split = MemorySplit(
        weights=1000,
        kv_committed=0,
        caches=0,
        state=0,
        graphs=0,
        workspace=0,
        allocator_free=0,
        roles=0,
        outside=200,
    )
    return Health(
        status=Status.OK,
        version="0.1.0",
        snapshot_age_s=0.01,
        uptime_s=5.0,
        last_progress_age_s=None,
        loading=None,
        model=Model(
            name="scripted",
            arch="script",
            max_len=MAX_LEN,
            device="cpu",
            weights=Weights(bytes=1000, forms=[WeightFormat(file="none", runs_as="script", tensors=0)]),
        ),
        parallel=Parallel(
            requested=slots,
            slots=slots,
            max_running=slots,
            max_running_reason=None,
            running=0,
            decoding=0,
            waiting=0,
            peak_running=0,
            peak_decoding=0,
            rounds={},
            rounds_timed_out=0,
            spill_waits=0,
            slot0_gave_up=0,
            side_disk=SideDisk(),
            totals=Totals(),
        ),
        lanes=[idle_lane(slot) for slot in range(slots)],
        queue=[],
        kv_pool=KvPool(
            enabled=True,
            backend="script",
            page_bytes=65536,
            reserved_bytes=1 << 20,
            committed_bytes=0,
            committed_pages=0,
            peak_committed_bytes=0,
            by_slot=[0] * slots,
            by_kind={"engine": 0},
            commits=0,
            releases=0,
            refused=0,
        ),
        memory=Memory(
            source="host",
            total=10_000,
            available=8_800,
            floor=1000,
            hard_floor=666,
            ceiling=None,
            peak=None,
            fixed=0,
            split=split,
            devices=[],
        ),
        cache={"resident": CacheLevel()},
        roles=[],
        speculation=Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
    )


def busy_health() -> Health:
    """Both slots at work and one request waiting."""
    health = idle_health()
    request = LaneRequest(
        id="req-1",
        client="opencode",
        prompt_tokens=30,
        cached_tokens=10,
        completion_tokens=4,
        max_tokens=64,
        ttft_s=0.1,
        tok_s=20.0,
        prefill_done=30,
        prefill_total=30,
        accepted_per_round=1.0,
        age_s=0.3,
    )
    lanes = [
        msgspec.structs.replace(
            lane, state=LaneState.DECODING, rows=34, phase_text="Writing, 20.0 tok/s", request=request
        )
        for lane in health.lanes
    ]
    queued = Queued(
        id="req-2",
        state=WaitState.SLOT,
        reason="all 2 slots are busy",
        since_s=0.2,
        prompt_tokens=9,
        max_tokens=16,
        home=None,
        client="open-webui",
    )
    parallel = msgspec.structs.replace(
        health.parallel, running=2, decoding=2, waiting=1, rounds={"1": 3, "2": 7}, totals=Totals(served=5, abandoned=1)
    )
    return msgspec.structs.replace(health, lanes=lanes, queue=[queued], parallel=parallel)


def wait_until(condition: Callable[[], bool], *, timeout_s: float = LONG_S) -> bool:
    """Poll until the condition holds; False where it never did."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()
