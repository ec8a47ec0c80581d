"""Totals over the ledger: what was served, in all and by day, client or model."""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

import msgspec

from engine.ledger.reader import LedgerReader
from engine.protocol import Finish


class UsageBy(StrEnum):
    DAY = "day"
    CLIENT = "client"
    MODEL = "model"


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended, however they did, and their tokens. `served_s` is the time that they had a slot,
    `ttft_median_s` from arrival to first token (null where none had one), `errors` counts errors and timeouts."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    served_s: float
    ttft_median_s: float | None
    errors: int
    refused: int


class UsageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one day (local, YYYY-MM-DD), client or model, which `key` names."""

    key: str
    totals: UsageTotals


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """`since` is the Unix time from which requests that ended are counted; null is all that the ledger keeps."""

    ledger: str
    by: UsageBy | None
    since: float | None
    groups: list[UsageGroup]
    total: UsageTotals


_FAILED = frozenset({str(Finish.ERROR), str(Finish.TIMEOUT)})

_KEYS = {
    None: "''",
    UsageBy.DAY: "date(finished_at, 'unixepoch', 'localtime')",
    UsageBy.CLIENT: "client",
    UsageBy.MODEL: "model",
}


@dataclass(slots=True)
class _Sum:
    """The totals of one group as they grow."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    served_s: float = 0.0
    errors: int = 0
    refused: int = 0
    first_tokens: array[float] = field(default_factory=lambda: array("d"))

    def join(self, other: _Sum) -> None:
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion
        self.served_s += other.served_s
        self.errors += other.errors
        self.refused += other.refused
        self.first_tokens += other.first_tokens

    def totals(self) -> UsageTotals:
        return UsageTotals(
            requests=self.requests,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            completion_tokens=self.completion,
            served_s=self.served_s,
            ttft_median_s=median(self.first_tokens) if self.first_tokens else None,
            errors=self.errors,
            refused=self.refused,
        )


def usage(reader: LedgerReader, name: str, *, by: UsageBy | None, since: float | None) -> UsageReport:
    """The report over the ledger called `name`. Raises LedgerUnusable, TookTooLong."""
    with reader.opened() as connection:
        sums = {} if connection is None else _sums(connection, by, since)
    total = _Sum()
    for one in sums.values():
        total.join(one)
    groups = [UsageGroup(key=key, totals=sums[key].totals()) for key in sorted(sums)] if by else []
    return UsageReport(ledger=name, by=by, since=since, groups=groups, total=total.totals())


def _sums(connection: sqlite3.Connection, by: UsageBy | None, since: float | None) -> dict[str, _Sum]:
    """One pass over the rows: grouping and sorting a million of them takes SQLite several times as long."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    found = connection.execute(
        f"SELECT {_KEYS[by]}, prompt_tokens, cached_tokens, completion_tokens, total_s - queue_s, ttft_s, finish "
        "FROM requests WHERE finished_at >= ?",
        (float("-inf") if since is None else since,),
    )
    for key, prompt, cached, completion, served_s, first_token, finish in found:
        one = sums[key]
        one.requests += 1
        one.prompt += prompt
        one.cached += cached
        one.completion += completion
        if served_s is not None:
            one.served_s += served_s
        if first_token is not None:
            one.first_tokens.append(first_token)
        if finish in _FAILED:
            one.errors += 1
        elif finish == Finish.REFUSED:
            one.refused += 1
    return sums
