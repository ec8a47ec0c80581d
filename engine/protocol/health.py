"""The wire types of a running engine: what `/health` and `/slots` say.

Every process that reads them (console, CLI, tests) imports this package, so it imports neither torch nor anything
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


class Finish(StrEnum):
    """How a request ended, in the ledger. `abandoned`: its client left; `cancelled`: the operator ended it."""

    STOP = "stop"
    LENGTH = "length"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    ERROR = "error"
    TIMEOUT = "timeout"


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every wire type: immutable, keyword-only."""


class Loading(Wire, frozen=True, kw_only=True):
    stage: str
    done_bytes: int
    total_bytes: int
    eta_s: float | None


class WeightFormat(Wire, frozen=True, kw_only=True):
    """One form that weights take in the file and how the backend runs it."""

    file: str
    runs_as: str
    tensors: int


class Weights(Wire, frozen=True, kw_only=True):
    bytes: int
    forms: list[WeightFormat]


class Model(Wire, frozen=True, kw_only=True):
    name: str
    arch: str
    max_len: int
    device: str
    weights: Weights
    arithmetic: str = "one"
    backend: str = ""
    warnings: tuple[str, ...] = ()
    """What is wrong with the file and does not keep it from being served, a sentence each."""


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
    cancelled: int = 0
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
    """The request in a slot. `queue_s`: from its arrival to its slot; `worst_gap_s`: the longest pause between two of
    its tokens so far, null before the second."""

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
    queue_s: float | None = None
    worst_gap_s: float | None = None


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


class LadderLevel(Wire, frozen=True, kw_only=True):
    """One rung of the pressure ladder: what it could give back now, and what it gave since start.

    `reclaims` counts how often it was asked while it held something, `freed_bytes` what came back in all; the last time
    is `last_age_s` ago, for `last_reason` (both null where it was never asked).
    """

    level: str
    held_bytes: int
    reclaims: int
    freed_bytes: int
    last_age_s: float | None
    last_reason: str | None


class Memory(Wire, frozen=True, kw_only=True):
    """The memory that holds the KV; `split` adds up to `total - available`. `ladder`: in the order in which the levels
    are asked to give back. `reading_age_s`: 0 while the memory can be measured; else how old the figures are, which are
    the last that could be read."""

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
    ladder: list[LadderLevel] = []
    reading_age_s: float = 0.0


class CacheLevel(Wire, frozen=True, kw_only=True):
    entries: int = 0
    held_bytes: int = 0
    limit_bytes: int | None = None
    hits: int = 0
    restored_tokens: int = 0
    refused: int = 0


class Role(Wire, frozen=True, kw_only=True):
    """A small model beside the engine. `decision`, `headroom_after`, `to_fit` and `claim_source` are the planner's, as
    in `PlanDecision`; null where nothing planned the role."""

    name: str
    kind: str
    state: RoleState
    claim_bytes: int
    measured_bytes: int | None
    reason: str
    since_s: float
    reloads: int
    decision: str | None = None
    headroom_after: int | None = None
    to_fit: str | None = None
    claim_source: str | None = None


class Speculation(Wire, frozen=True, kw_only=True):
    """`accepted_by_depth[d]`: drafted tokens at depth d + 1 that the model agreed with; empty without drafters."""

    drafters: list[str]
    rounds: int
    drafted: int
    accepted: int
    accepted_by_depth: list[int] = []


class RoundStat(Wire, frozen=True, kw_only=True):
    """Joint rounds in which `rows` slots decoded together, since start. `p95_ms` is over the last few hundred of them,
    `tokens_per_round` over all slots of a round."""

    rows: int
    rounds: int
    mean_ms: float
    p95_ms: float
    tokens_per_round: float
    ms_total: float


class LedgerState(Wire, frozen=True, kw_only=True):
    """How the ledger of requests stands: rows `written` and `dropped` since start, and what keeps it from being
    written, in a sentence; null while nothing does. `enabled` is false where the settings turn it off."""

    enabled: bool = False
    written: int = 0
    dropped: int = 0
    defect: str | None = None


class LogState(Wire, frozen=True, kw_only=True):
    """How the log stands: lines `dropped` since start, because nobody read stderr or it took no more."""

    dropped: int = 0


class StateDirState(Wire, frozen=True, kw_only=True):
    """How the state directory stands: which of the service's files there could not be written at its start and why, in
    a sentence; null where all could."""

    defect: str | None = None


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
    round_stats: list[RoundStat] = []
    ledger: LedgerState = LedgerState()
    log: LogState = LogState()
    state_dir: StateDirState = StateDirState()
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


def encode(value: Wire | list[SlotView]) -> bytes:
    """Encode a wire value as JSON bytes."""
    return msgspec.json.encode(value)


def decode_health(body: bytes) -> Health:
    """Decode a `/health` body; raises msgspec.DecodeError or msgspec.ValidationError. Unknown fields are ignored."""
    return msgspec.json.decode(body, type=Health)
