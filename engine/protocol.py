"""The wire types: what `/health`, the bench and the residency planner say, in one place.

Every process that reads them (console, CLI, tests) imports this module, so it imports neither torch nor anything
else of the engine. Sizes are bytes, times are seconds. A field may be added, never renamed, without a new
`CONTRACT` version.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

CONTRACT = "tandem-health-1"


class Status(StrEnum):
    """What the engine as a whole can do right now."""

    LOADING = "loading"
    OK = "ok"
    DRAINING = "draining"
    STALLED = "stalled"


class LaneState(StrEnum):
    """The phase of the request in a slot."""

    IDLE = "idle"
    RESTORING = "restoring"
    PREFILLING = "prefilling"
    YIELDED = "yielded"
    DECODING = "decoding"
    FINISHING = "finishing"


class WaitState(StrEnum):
    """What a queued request waits for."""

    SLOT = "waiting_slot"
    HOME = "waiting_home"
    SLOT0 = "waiting_slot0"
    MEMORY = "waiting_memory"


class RoleState(StrEnum):
    """Where a small model beside the engine stands."""

    PLANNED = "planned"
    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"
    UNLOADED_FOR_MEMORY = "unloaded_for_memory"
    RELOADING = "reloading"
    REFUSED = "refused"


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every wire type: immutable, keyword-only."""


class Loading(Wire, frozen=True, kw_only=True):
    stage: str
    done_bytes: int
    total_bytes: int
    eta_s: float | None


class WeightForm(Wire, frozen=True, kw_only=True):
    """One form that weights take in the file and how the backend runs it."""

    file: str
    runs_as: str
    tensors: int


class Weights(Wire, frozen=True, kw_only=True):
    bytes: int
    forms: list[WeightForm]


class Model(Wire, frozen=True, kw_only=True):
    name: str
    arch: str
    max_len: int
    device: str
    weights: Weights
    arithmetic: str = "one"
    backend: str = ""


class SideDisk(Wire, frozen=True, kw_only=True):
    lookups: int = 0
    hits: int = 0
    restored_tokens: int = 0


class Totals(Wire, frozen=True, kw_only=True):
    """Requests since start, each counted once, by how it ended."""

    served: int = 0
    refused: int = 0
    errors: int = 0
    timeouts: int = 0
    abandoned: int = 0
    waiting_memory: int = 0


class Parallel(Wire, frozen=True, kw_only=True):
    requested: int
    slots: int
    max_running: int
    max_running_reason: str | None
    running: int
    decoding: int
    waiting: int
    peak_running: int
    peak_decoding: int
    rounds: dict[str, int]
    rounds_timed_out: int
    spill_waits: int
    slot0_gave_up: int
    side_disk: SideDisk
    totals: Totals


class LaneRequest(Wire, frozen=True, kw_only=True):
    id: str
    client: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    max_tokens: int
    ttft_s: float | None
    tok_s: float | None
    prefill_done: int
    prefill_total: int
    accepted_per_round: float | None
    age_s: float


class Lane(Wire, frozen=True, kw_only=True):
    """One slot as it is now.

    `rows` are KV rows written and valid, `committed_rows` the rows that pages back (with the margin),
    `resident_rows` the rows a next turn may resume from.
    """

    slot: int
    kind: str
    window: int
    state: LaneState
    reason: str | None
    phase_text: str
    rows: int
    committed_rows: int
    resident_rows: int
    committed_bytes: int
    request: LaneRequest | None


class Queued(Wire, frozen=True, kw_only=True):
    id: str
    state: WaitState
    reason: str
    since_s: float
    prompt_tokens: int
    max_tokens: int
    home: int | None
    client: str


class KvPool(Wire, frozen=True, kw_only=True):
    """The pool's books: sum(by_slot) = sum(by_kind) = committed_bytes = committed_pages x page_bytes."""

    enabled: bool
    backend: str
    page_bytes: int
    reserved_bytes: int
    committed_bytes: int
    committed_pages: int
    peak_committed_bytes: int
    by_slot: list[int]
    by_kind: dict[str, int]
    commits: int
    releases: int
    refused: int


class MemorySplit(Wire, frozen=True, kw_only=True):
    weights: int
    kv_committed: int
    caches: int
    state: int
    graphs: int
    workspace: int
    allocator_free: int
    roles: int
    outside: int


class DeviceMemory(Wire, frozen=True, kw_only=True):
    name: str
    source: str
    total: int
    available: int
    floor: int
    hard_floor: int
    split: MemorySplit


class Memory(Wire, frozen=True, kw_only=True):
    """The memory that holds the KV; `split` adds up to `total - available`."""

    source: str
    total: int
    available: int
    floor: int
    hard_floor: int
    ceiling: int | None
    peak: int | None
    fixed: int
    split: MemorySplit
    devices: list[DeviceMemory]


class CacheLevel(Wire, frozen=True, kw_only=True):
    entries: int = 0
    held_bytes: int = 0
    limit_bytes: int | None = None
    hits: int = 0
    restored_tokens: int = 0
    refused: int = 0


class Role(Wire, frozen=True, kw_only=True):
    name: str
    kind: str
    state: RoleState
    claim_bytes: int
    measured_bytes: int | None
    reason: str
    since_s: float
    reloads: int


class Speculation(Wire, frozen=True, kw_only=True):
    drafters: list[str]
    rounds: int
    drafted: int
    accepted: int


class Health(Wire, frozen=True, kw_only=True):
    """The body of `GET /health`. `defect`: what the engine's books disagreed about when it last fell idle; null where
    they agree."""

    status: Status
    version: str
    snapshot_age_s: float
    uptime_s: float
    last_progress_age_s: float | None
    loading: Loading | None
    model: Model | None
    parallel: Parallel
    lanes: list[Lane]
    queue: list[Queued]
    kv_pool: KvPool
    memory: Memory
    cache: dict[str, CacheLevel]
    roles: list[Role]
    speculation: Speculation
    defect: str | None = None
    contract: str = CONTRACT


class SlotView(Wire, frozen=True, kw_only=True):
    """One entry of `GET /slots`."""

    id: int
    state: LaneState
    is_processing: bool
    n_ctx: int
    n_past: int
    client: str | None
    reason: str | None


class TokenDifference(Wire, frozen=True, kw_only=True):
    """Where a text parted from its alone text: the token index, both tokens, and the alone run's top-2 gap in nats."""

    prompt: int
    position: int
    alone: str
    here: str
    gap_nats: float | None


class Spread(Wire, frozen=True, kw_only=True):
    median: float
    min: float | None = None
    last: float | None = None


class Proof(Wire, frozen=True, kw_only=True):
    peak_decoding: int
    rounds: dict[str, int]


class BenchLevel(Wire, frozen=True, kw_only=True):
    c: int
    valid: bool
    why_invalid: str | None
    requests: int
    total_tok_s: float
    ratio_to_c1: float | None
    per_request_tok_s: Spread
    ttft_s: Spread
    worst_gap_s: float
    identical: int
    of: int
    differences: list[TokenDifference]
    proof: Proof


class BenchEngine(Wire, frozen=True, kw_only=True):
    model: str
    device: str
    parallel: int
    version: str


class BenchReport(Wire, frozen=True, kw_only=True):
    valid: bool
    engine: BenchEngine
    prompts: int
    tokens: int
    levels: list[BenchLevel]


class PlanMemory(Wire, frozen=True, kw_only=True):
    source: str
    available: int
    floor: int
    margin: int
    engine_growth_to_come: int


class PlanDecision(Wire, frozen=True, kw_only=True):
    role: str
    kind: str
    decision: str
    claim_bytes: int
    claim_source: str
    headroom_after: int
    reason: str
    to_fit: str | None


class PlanReport(Wire, frozen=True, kw_only=True):
    dry_run: bool
    memory: PlanMemory
    decisions: list[PlanDecision]


def encode(value: Wire | list[SlotView]) -> bytes:
    """Encode a wire value as JSON bytes."""
    return msgspec.json.encode(value)


def decode_health(body: bytes) -> Health:
    """Decode a `/health` body; raises msgspec.DecodeError or msgspec.ValidationError. Unknown fields are ignored."""
    return msgspec.json.decode(body, type=Health)
