"""Totals over the ledger: what was served, in all and by day, client or model."""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from math import isfinite
from statistics import median
from typing import get_args

import msgspec

from engine.process.ledger.reader import LedgerReader, misfit
from engine.process.ledger.store import LedgerUnusable
from engine.protocol import Finish, LedgerRow


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


_MOST_S = 2.1e11
"""SQLite names every date within this many seconds of 1970; no length of time is longer either."""

_STORED = {str: "text", int: "integer", float: "real", type(None): "null", Finish: "text"}
_KINDS = {
    column.name: [_STORED[kind] for kind in get_args(column.type) or (column.type,)]
    for column in msgspec.structs.fields(LedgerRow)
}
_MISFIT = (
    "CASE "
    + " ".join(
        f"WHEN typeof({name}) NOT IN ({str(kinds)[1:-1]})"
        + (f" OR abs({name}) > {_MOST_S}" if "real" in kinds else "")
        + f" THEN '{name}'"
        for name, kinds in _KINDS.items()
    )
    + f" WHEN finish NOT IN ({str([str(finish) for finish in Finish])[1:-1]}) THEN 'finish' END"
)
"""The first column of a row in which something else stands than an engine writes. Slow: for a row known to be wrong."""

_SHAPES = frozenset(product((str,), (int,), (int,), (int,), (float,), (float, type(None)), (float, type(None)), (str,)))
"""The types of what is read of a row to add it up."""

_FINISHES = frozenset(map(str, Finish))

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
    after = float("-inf") if since is None else since
    sums: dict[str, _Sum] = {}
    with reader.opened() as connection:
        if connection is not None:
            sums = _sums(connection, by, after)
    total = _Sum()
    for one in sums.values():
        total.join(one)
    groups = [UsageGroup(key=key, totals=sums[key].totals()) for key in sorted(sums)] if by else []
    return UsageReport(ledger=name, by=by, since=since, groups=groups, total=total.totals())


def _edited(connection: sqlite3.Connection, after: float) -> LedgerUnusable:
    """Which row was edited into something that cannot be added up."""
    seq, name = connection.execute(
        f"SELECT seq, {_MISFIT} AS name FROM requests WHERE finished_at >= ? AND name IS NOT NULL LIMIT 1", (after,)
    ).fetchone()
    ((value,),) = connection.execute(f"SELECT {name} FROM requests WHERE seq = ?", (seq,))
    allowed = " or ".join(Finish if name == "finish" else _KINDS[name])
    if "real" in allowed:
        allowed += f", at most {_MOST_S:g} either way"
    return misfit(seq, f"{name} is {repr(value)[:60]}; allowed: {allowed}")


def _sums(connection: sqlite3.Connection, by: UsageBy | None, after: float) -> dict[str, _Sum]:
    """One pass over the rows: grouping and sorting a million of them takes SQLite several times as long.

    Raises LedgerUnusable for a row that was edited into something that cannot be added up."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    found = connection.execute(
        f"SELECT {_KEYS[by]}, prompt_tokens, cached_tokens, completion_tokens, total_s, queue_s, ttft_s, finish "
        "FROM requests WHERE finished_at >= ?",
        (after,),
    )
    for values in found:
        if tuple(map(type, values)) not in _SHAPES:
            raise _edited(connection, after)
        key, prompt, cached, completion, total_s, queue_s, first_token, finish = values
        one = sums[key]
        one.requests += 1
        one.prompt += prompt
        one.cached += cached
        one.completion += completion
        if queue_s is not None:
            one.served_s += total_s - queue_s
        if first_token is not None:
            one.first_tokens.append(first_token)
        if finish in _FAILED:
            one.errors += 1
        elif finish == Finish.REFUSED:
            one.refused += 1
        elif finish not in _FINISHES:
            raise _edited(connection, after)
    if not all(isfinite(one.served_s) for one in sums.values()):
        raise _edited(connection, after)
    return sums
