"""What one frame says: frozen rows of words and numbers, without layout, colour or terminal. Made by `view.py`."""

from __future__ import annotations

import msgspec

from console.feeds import NOTHING_FED, Fed
from console.history import Track
from console.parts.queue import Waiting
from console.tones import Tone
from console.words import Word

# Older than this, a picture does not pass for now.
STALE_S = 3.0


class View(msgspec.Struct, frozen=True):
    """Base of every row. No dataclass: one of thirty fields took longer to define than to draw, and these are made and
    compared with every snapshot."""


class Link(View, frozen=True):
    """How the console stands with the engine: where it looks, how old its picture is, and what failed last.

    `paused`: the picture is held on purpose. `notice` is what a person must know of the console itself, such as a
    recording that stopped; `place` tells this engine from the others that are watched; `recording`: what is seen is
    kept in a file."""

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
        """Whether the picture is too old to pass for now."""
        old = self.error is not None or (self.age_s is not None and self.age_s > STALE_S)
        return old and not self.paused


class HeaderView(View, frozen=True):
    model: str
    detail: str
    uptime: str
    status: Word
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


class LaneView(View, frozen=True):
    """One slot. `text` says the phase, `short` the same where room is scarce: its word and its rate.

    `tok_s` is the rate now, of reading or writing, None while the picture is stale. `read_*` are prompt tokens,
    `done` and `limit` tokens of the answer, rows are KV rows."""

    slot: int
    kind: str
    word: Word
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


class LanesView(View, frozen=True):
    lanes: tuple[LaneView, ...]
    busy: int
    slots: int
    note: str | None
    rounds: tuple[tuple[str, int], ...]
    filter_text: str


class LoadingView(View, frozen=True):
    stage: str
    done: int
    total: int
    left: str


class SlotPages(View, frozen=True):
    """What one slot holds of the pool; `share` is of its part of the reserved range."""

    slot: int
    pages: int
    held: int
    share: float


class PoolView(View, frozen=True):
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


class MemoryPart(View, frozen=True):
    label: str
    tone: Tone
    glyph: str
    held: int


class LadderRow(View, frozen=True):
    """One level of the pressure ladder: what it could give back now and what it gave since the start."""

    name: str
    held: int
    reclaims: int
    freed: int
    last_age_s: float | None
    last_reason: str


class MemoryView(View, frozen=True):
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


class RoleView(View, frozen=True):
    """One small model. `id` is its name as the engine knows it, `name` the same made literal; `claim` says the claim in
    short. `decision`, `headroom_after` and `to_fit` are the planner's, None where it planned nothing."""

    id: str
    name: str
    kind: str
    word: Word
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


class RoundSize(View, frozen=True):
    """The rounds in which `rows` slots decoded together. `tokens` is what such a round writes in all slots together.

    `share` is the part of all the rounds' time; `tok_s` what these rounds write a second; `ratio` that over one
    stream's, None where one stream was hardly measured alone.
    """

    rows: int
    rounds: int
    mean_ms: float
    p95_ms: float
    tokens: float
    share: float
    tok_s: float
    ratio: float | None


class RoundsView(View, frozen=True):
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


class ScreenView(View, frozen=True):
    """Everything one frame shows. Where there is no snapshot yet, only the header and the link have anything to say.

    `fed` is what was fetched beyond the snapshot; `writes` says whether the console may order anything."""

    link: Link
    header: HeaderView
    lanes: LanesView | None = None
    loading: LoadingView | None = None
    pool: PoolView | None = None
    memory: MemoryView | None = None
    roles: tuple[RoleView, ...] = ()
    queue: Waiting = msgspec.field(default_factory=Waiting)
    queue_total: int = 0
    rounds: RoundsView | None = None
    past: Track = msgspec.field(default_factory=Track)
    textures: bool = False
    fed: Fed = NOTHING_FED
    writes: bool = False
