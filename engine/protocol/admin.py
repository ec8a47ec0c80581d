"""The wire types of `/admin`: the ledger's rows, the log's lines, and the answers to actions."""

from __future__ import annotations

from engine.protocol.health import Finish, Wire


class LedgerRow(Wire, frozen=True, kw_only=True):
    """One request that ended: counts and timings, never a word of it.

    `arrived_at` and `finished_at` are Unix seconds, the other times are lengths; `queue_s` ends where the request got
    its slot, `prefill_s` runs from there to the first token, `decode_s` from the first token to the last. Null stands
    for what it did not reach. `reason` says why it ended where `finish` is not the answer's own; `route` is the rule by
    which it got its slot.
    """

    id: str
    client: str
    model: str
    slot: int | None
    arrived_at: float
    finished_at: float
    prompt_tokens: int
    cached_tokens: int
    cache_source: str
    completion_tokens: int
    max_tokens: int | None
    finish: Finish
    reason: str | None
    queue_s: float | None
    ttft_s: float | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float
    tok_s: float | None
    worst_gap_s: float | None
    route: str | None


class RequestsPage(Wire, frozen=True, kw_only=True):
    """The body of `GET /admin/requests`: the newest first. `next` goes into `before` for the page that follows; `total`
    counts every row that fits the search."""

    rows: list[LedgerRow]
    next: str | None
    total: int


class LogLine(Wire, frozen=True, kw_only=True):
    """One log line: `at` in Unix seconds, `event` its short name, `text` the rest, `request` the id it is about."""

    seq: int
    at: float
    level: str
    event: str
    text: str
    request: str | None


class LogPage(Wire, frozen=True, kw_only=True):
    """The body of `GET /admin/log`: lines in order; `next` goes into `after` for what comes later."""

    lines: list[LogLine]
    next: int


class ActionReply(Wire, frozen=True, kw_only=True):
    """What an operator's action did."""

    done: bool
    message: str
