"""The view model: the text and numbers of one frame as frozen dataclasses, without layout, colour or terminal.

`build.py` makes them of a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from console.history.rates import Track
from console.session.fetched import NOTHING_FETCHED, Fetched
from console.text.spans import StyleRole
from console.viewmodel.labels import StatusLabel
from console.viewmodel.queue import WaitingQueue

# A picture older than this is not current.
STALE_S = 3.0


@dataclass(frozen=True)
class Link:
    """The connection to the engine: its address, the age of the picture, and the last error.

    `paused`: a person holds the picture. `notice` is a message about the console itself, such as a recording that
    stopped. `recorded` is the time of day in a recording. `place` tells the engine from the others that are watched.
    `recording`: the snapshots are recorded."""

    url: str
    age_s: float | None = None
    error: str | None = None
    paused: bool = False
    notice: str | None = None
    recorded: str | None = None
    place: str = ""
    recording: bool = False

    @property
    def stale(self) -> bool:
        """Whether the picture is too old to be current."""
        old = self.error is not None or (self.age_s is not None and self.age_s > STALE_S)
        return old and not self.paused


@dataclass(frozen=True)
class HeaderView:
    model: str
    detail: str
    uptime: str
    status: StatusLabel
    freshness: str
    stale: bool
    paused: bool
    tok_s: float
    rates: tuple[float, ...]
    running: int
    waiting: int
    totals: tuple[str, ...]
    trouble: tuple[str, ...]
    place: str = ""
    recording: bool = False


@dataclass(frozen=True)
class LaneView:
    """One slot. `text` is the phase, `short` the same for narrow columns: its label and its rate.

    `tok_s` is the rate now, of reading or writing, None while the picture is stale. `read_*` are prompt tokens,
    `done` and `limit` tokens of the answer, rows are KV rows."""

    slot: int
    kind: str
    label: StatusLabel
    text: str
    short: str
    busy: bool
    reading: bool
    rates: tuple[float, ...]
    rows: int
    kept: int
    committed: int
    window: int
    committed_bytes: int
    reason: str | None = None
    request: str = ""
    client: str = ""
    age: str = ""
    ttft_s: float | None = None
    cached: str = ""
    per_round: str = ""
    prompt: int = 0
    done: int = 0
    limit: int = 0
    read_done: int = 0
    read_total: int = 0
    left_s: float | None = None
    tok_s: float | None = None
    cached_tokens: int = 0
    queue_s: float | None = None
    worst_gap_s: float | None = None


@dataclass(frozen=True)
class LanesView:
    lanes: tuple[LaneView, ...]
    busy: int
    slots: int
    note: str | None
    rounds: tuple[tuple[str, int], ...]
    filter_text: str


@dataclass(frozen=True)
class LoadingView:
    stage: str
    done: int
    total: int
    left: str


@dataclass(frozen=True)
class SlotPages:
    """The pages of one slot; `share` is relative to the slot's part of the reserved range."""

    slot: int
    pages: int
    held: int
    share: float


@dataclass(frozen=True)
class PoolView:
    enabled: bool
    backend: str
    page: int
    pages: int
    committed: int
    reserved: int
    peak: int
    slots: tuple[SlotPages, ...]
    kinds: tuple[tuple[str, int], ...]
    commits: int
    releases: int
    refused: int


@dataclass(frozen=True)
class MemoryPart:
    label: str
    style: StyleRole
    glyph: str
    held: int


@dataclass(frozen=True)
class LadderRow:
    """One level of the pressure ladder: what it could give back now and what it gave since the start."""

    name: str
    held: int
    reclaims: int
    freed: int
    last_age_s: float | None
    last_reason: str


@dataclass(frozen=True)
class MemoryView:
    """One memory: the parts in use and what is free add up to the total."""

    name: str
    source: str
    total: int
    available: int
    floor: int
    hard_floor: int
    parts: tuple[MemoryPart, ...]
    unnamed: int
    others: tuple[str, ...]
    devices: tuple[MemoryView, ...] = ()
    ladder: tuple[LadderRow, ...] = ()


@dataclass(frozen=True)
class RoleView:
    """One small model. `id` is its name as the engine knows it, `name` the same made literal; `claim` says the claim in
    short. `decision`, `headroom_after` and `to_fit` are the planner's, None where it planned nothing."""

    id: str
    name: str
    kind: str
    label: StatusLabel
    claim: str
    since: str
    reason: str
    reloads: int
    claim_bytes: int
    claim_source: str
    measured_bytes: int | None
    decision: str | None
    headroom_after: int | None
    to_fit: str | None


@dataclass(frozen=True)
class RoundSize:
    """The rounds in which `rows` slots decoded together. `tokens` is what such a round writes in all slots together.

    `share` is the part of all the rounds' time; `tok_s` what these rounds write a second; `ratio` is that over
    one stream's, None where too few rounds of one stream were measured.
    """

    rows: int
    rounds: int
    mean_ms: float
    p95_ms: float
    tokens: float
    share: float
    tok_s: float
    ratio: float | None


@dataclass(frozen=True)
class RoundsView:
    """Measured rounds by size; `seconds` and `tokens` are over all of them. `by_slots` counts rounds since the start.

    `depths` counts drafts accepted at each depth, the first at depth 1.
    """

    sizes: tuple[RoundSize, ...]
    rounds: int
    seconds: float
    tokens: float
    tok_s: float
    ratio: float | None
    drafters: tuple[str, ...]
    drafted: int
    accepted: int
    depths: tuple[int, ...]


@dataclass(frozen=True)
class ScreenView:
    """Everything that one frame shows. Before the first snapshot only the header and the link are set.

    `fetched` are ledger rows and log lines; `writes`: the console may act on the engine."""

    link: Link
    header: HeaderView
    lanes: LanesView | None = None
    loading: LoadingView | None = None
    pool: PoolView | None = None
    memory: MemoryView | None = None
    roles: tuple[RoleView, ...] = ()
    queue: WaitingQueue = field(default_factory=WaitingQueue)
    queue_total: int = 0
    rounds: RoundsView | None = None
    past: Track = field(default_factory=Track)
    textures: bool = False
    fetched: Fetched = NOTHING_FETCHED
    writes: bool = False

    def is_live(self, request_id: str) -> bool:
        """Whether the request runs or waits in this picture."""
        lanes = self.lanes.lanes if self.lanes is not None else ()
        running = any(lane.busy and lane.request == request_id for lane in lanes)
        return running or any(entry.id == request_id for entry in self.queue)
