"""What a view shows beyond `/health`: frozen, and folded from answers by pure functions. Asking is `feeding.py`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from engine.protocol import LedgerRow, LogLine, LogPage, RequestsPage

# What is kept of long lists; a person who looks for more searches.
ROWS_KEPT = 2_000
LINES_KEPT = 4_000


class RequestsFed(msgspec.Struct, frozen=True, eq=False):
    """Rows of the ledger, the newest first, all that fit the search `query`.

    `next` asks for the rows that follow (None: there are none); `total` is None before the first answer. `found` is a
    row that was asked for by its id. `trouble` says why the last attempt brought nothing; `stamp` tells how many
    requests had ended when the newest were asked for. Compared by identity, as `LogFed` is.
    """

    query: str = ""
    stamp: int | None = None
    rows: tuple[LedgerRow, ...] = ()
    next: str | None = None
    total: int | None = None
    found: LedgerRow | None = None
    trouble: str | None = None


class LogFed(msgspec.Struct, frozen=True, eq=False):
    """The last log lines in order; `next` asks for what comes later. `answered`: whether anything was heard yet.

    Compared by identity, so that what is laid out from thousands of lines can be kept by it.
    """

    lines: tuple[LogLine, ...] = ()
    next: int = 0
    answered: bool = False
    trouble: str | None = None


class Fed(msgspec.Struct, frozen=True):
    """What was fetched so far, for the views that ask for more than the snapshot."""

    requests: RequestsFed = RequestsFed()
    log: LogFed = LogFed()


NOTHING_FED = Fed()


def row_key(row: LedgerRow) -> str:
    """Tells rows apart: clients may choose ids, so one id may come twice."""
    return f"{row.id} {row.finished_at:.6f}"


def with_newest(fed: RequestsFed, query: str, stamp: int, page: RequestsPage) -> RequestsFed:
    """The first page of a search came: what is new in it stands before the rows held already."""
    rows, following = tuple(page.rows), page.next
    if query == fed.query and fed.rows:
        held = row_key(fed.rows[0])
        new = next((index for index, row in enumerate(rows) if row_key(row) == held), None)
        if new is not None:
            rows, following = rows[:new] + fed.rows, fed.next
    if len(rows) > ROWS_KEPT:
        rows = rows[:ROWS_KEPT]
        following = rows[-1].id
    return replace(fed, query=query, stamp=stamp, rows=rows, next=following, total=page.total, trouble=None)


def with_older(fed: RequestsFed, query: str, before: str, page: RequestsPage) -> RequestsFed:
    """A following page came; one that follows something else by now is dropped."""
    if query != fed.query or before != fed.next:
        return fed
    rows = fed.rows + tuple(page.rows)
    more = page.next if len(rows) < ROWS_KEPT else None
    return replace(fed, rows=rows[:ROWS_KEPT], next=more, total=page.total, trouble=None)


def with_lines(fed: LogFed, after: int, page: LogPage) -> LogFed:
    """Log lines later than `after` came. An engine that started anew counts from one, so its log starts anew here."""
    if page.next < after:
        return LogFed(answered=True)
    if after != fed.next:
        return fed
    lines = (fed.lines + tuple(page.lines))[-LINES_KEPT:] if page.lines else fed.lines
    return LogFed(lines, page.next, answered=True)


class RequestsWanted(msgspec.Struct, frozen=True):
    """What the requests view lacks: with `newest` the newest rows that fit `query`; with `before` the rows that follow
    that id; with `opened` one row by its id. `stamp` tells how many requests had ended when this was wanted."""

    query: str
    stamp: int
    newest: bool = False
    before: str | None = None
    opened: str | None = None


def requests_wanted(
    fed: RequestsFed, query: str, stamp: int, *, at_end: bool = False, opened: str | None = None
) -> RequestsWanted | None:
    """What to ask the ledger for now, None where nothing: it is asked again only when a request ended meanwhile, the
    search changed or the last attempt failed, for older rows only where the last ones held are in sight (`at_end`)."""
    newest = fed.total is None or fed.query != query or fed.stamp != stamp or fed.trouble is not None
    before = fed.next if at_end and fed.query == query else None
    if not newest and before is None and opened is None:
        return None
    return RequestsWanted(query, stamp, newest, before, opened)


class RequestsCame(msgspec.Struct, frozen=True):
    """A page for `wanted`: the newest, or with `older` the one that follows its `before`."""

    wanted: RequestsWanted
    page: RequestsPage
    older: bool = False


class RequestCame(msgspec.Struct, frozen=True):
    """One request's row."""

    row: LedgerRow


class RequestsMissed(msgspec.Struct, frozen=True):
    """The ledger could not be asked, and why."""

    reason: str


class LogCame(msgspec.Struct, frozen=True):
    """Log lines later than `after`."""

    after: int
    page: LogPage


class LogMissed(msgspec.Struct, frozen=True):
    """The log could not be asked, and why."""

    reason: str


Came = RequestsCame | RequestCame | RequestsMissed | LogCame | LogMissed


def folded(fed: Fed, came: Came) -> Fed:
    """What is held once that came."""
    match came:
        case RequestsCame(wanted, page, older=True):
            return replace(fed, requests=with_older(fed.requests, wanted.query, wanted.before or "", page))
        case RequestsCame(wanted, page):
            return replace(fed, requests=with_newest(fed.requests, wanted.query, wanted.stamp, page))
        case RequestCame(row):
            return replace(fed, requests=replace(fed.requests, found=row))
        case RequestsMissed(reason):
            return replace(fed, requests=replace(fed.requests, trouble=reason))
        case LogCame(after, page):
            return replace(fed, log=with_lines(fed.log, after, page))
        case LogMissed(reason):
            return replace(fed, log=replace(fed.log, trouble=reason))
