"""Totals over the ledger: what was served, in all and by day, client or model."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby

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


NOTHING = UsageTotals(
    requests=0,
    prompt_tokens=0,
    cached_tokens=0,
    completion_tokens=0,
    served_s=0.0,
    ttft_median_s=None,
    errors=0,
    refused=0,
)

_KEYS = {
    None: "''",
    UsageBy.DAY: "strftime('%Y-%m-%d', finished_at, 'unixepoch', 'localtime')",
    UsageBy.CLIENT: "client",
    UsageBy.MODEL: "model",
}


def usage(reader: LedgerReader, name: str, *, by: UsageBy | None, since: float | None) -> UsageReport:
    """The report over the ledger called `name`. Raises LedgerUnusable, TookTooLong."""
    with reader.opened() as connection:
        if connection is None:
            return UsageReport(ledger=name, by=by, since=since, groups=[], total=NOTHING)
        connection.execute("BEGIN")
        total = _totals(connection, None, since).get("", NOTHING)
        found = {} if by is None else _totals(connection, by, since)
    groups = [UsageGroup(key=key, totals=found[key]) for key in sorted(found)]
    return UsageReport(ledger=name, by=by, since=since, groups=groups, total=total)


def _totals(connection: sqlite3.Connection, by: UsageBy | None, since: float | None) -> dict[str, UsageTotals]:
    values = (float("-inf") if since is None else since,)
    medians = dict(_medians(connection, by, values))
    errors = f"finish IN ('{Finish.ERROR}', '{Finish.TIMEOUT}')"
    found = connection.execute(
        f"SELECT {_KEYS[by]}, count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), "
        f"total(total_s - queue_s), sum({errors}), sum(finish = '{Finish.REFUSED}') "
        "FROM requests WHERE finished_at >= ? GROUP BY 1",
        values,
    )
    return {
        key: UsageTotals(
            requests=requests,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            served_s=served,
            ttft_median_s=medians.get(key),
            errors=failed,
            refused=refused,
        )
        for key, requests, prompt, cached, completion, served, failed, refused in found
    }


def _medians(
    connection: sqlite3.Connection, by: UsageBy | None, values: tuple[float, ...]
) -> Iterator[tuple[str, float]]:
    """The median first token of each group: the mean of the two in the middle where their number is even."""
    found = connection.execute(
        f"SELECT {_KEYS[by]}, ttft_s FROM requests WHERE finished_at >= ? AND ttft_s IS NOT NULL ORDER BY 1, 2", values
    )
    for key, rows in groupby(found, key=lambda row: row[0]):
        times = [ttft for _, ttft in rows]
        half = len(times) // 2
        yield key, times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2
