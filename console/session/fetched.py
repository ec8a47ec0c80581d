"""Ledger rows and log lines that were fetched for the views, and the pure functions that add an answer to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.protocol import LedgerRow, LogLine, LogPage, RequestsPage

# What is kept of long lists; a person who looks for more searches.
ROWS_KEPT = 2_000
LINES_KEPT = 4_000


@dataclass(frozen=True, eq=False)
class FetchedRequests:
    """Rows of the ledger, the newest first, all that fit the search `query`.

    `next` asks for the rows that follow (None: there are none); `total` is None before the first answer. `found` is a
    row that was asked for by its id. `trouble` says why the last attempt brought nothing; `stamp` tells how many
    requests had ended when the newest were asked for. Compared by identity, as `FetchedLog` is.
    """

    query: str = ""
    stamp: int | None = None
    rows: tuple[LedgerRow, ...] = ()
    next: str | None = None
    total: int | None = None
    found: LedgerRow | None = None
    trouble: str | None = None


@dataclass(frozen=True, eq=False)
class FetchedLog:
    """The last log lines in order; `next` asks for what comes later. `answered`: whether anything was heard yet.

    Compared by identity, so that what is laid out from thousands of lines can be kept by it.
    """

    lines: tuple[LogLine, ...] = ()
    next: int = 0
    answered: bool = False
    trouble: str | None = None


@dataclass(frozen=True)
class Fetched:
    """What was fetched so far, for the views that ask for more than the snapshot."""

    requests: FetchedRequests = FetchedRequests()
    log: FetchedLog = FetchedLog()


NOTHING_FETCHED = Fetched()


def row_key(row: LedgerRow) -> str:
    """Tells rows apart: clients may choose ids, so one id may come twice."""
    return f"{row.id} {row.finished_at:.6f}"


def find_row(fetched: FetchedRequests, key: str) -> LedgerRow | None:
    """The row with that key; or the newest with that id, which is how a request that ran meanwhile is found again."""
    exact = next((row for row in fetched.rows if row_key(row) == key), None)
    if exact is not None:
        return exact
    name = key.partition(" ")[0]
    if fetched.found is not None and fetched.found.id == name:
        return fetched.found
    return next((row for row in fetched.rows if row.id == key), None)


def with_newest(fetched: FetchedRequests, query: str, stamp: int, page: RequestsPage) -> FetchedRequests:
    """The first page of a search came: what is new in it stands before the rows held already."""
    rows, following = tuple(page.rows), page.next
    if query == fetched.query and fetched.rows:
        held = row_key(fetched.rows[0])
        new = next((index for index, row in enumerate(rows) if row_key(row) == held), None)
        if new is not None:
            rows, following = rows[:new] + fetched.rows, fetched.next
    if len(rows) > ROWS_KEPT:
        rows = rows[:ROWS_KEPT]
        following = rows[-1].id
    return replace(fetched, query=query, stamp=stamp, rows=rows, next=following, total=page.total, trouble=None)


def with_older(fetched: FetchedRequests, query: str, before: str, page: RequestsPage) -> FetchedRequests:
    """A following page came; one that follows something else by now is dropped."""
    if query != fetched.query or before != fetched.next:
        return fetched
    rows = fetched.rows + tuple(page.rows)
    more = page.next if len(rows) < ROWS_KEPT else None
    return replace(fetched, rows=rows[:ROWS_KEPT], next=more, total=page.total, trouble=None)


def with_lines(fetched: FetchedLog, after: int, page: LogPage) -> FetchedLog:
    """Log lines later than `after` came. An engine that started anew counts from one, so its log starts anew here."""
    if page.next < after:
        return FetchedLog(answered=True)
    if after != fetched.next:
        return fetched
    lines = (fetched.lines + tuple(page.lines))[-LINES_KEPT:] if page.lines else fetched.lines
    return FetchedLog(lines, page.next, answered=True)


@dataclass(frozen=True)
class RequestsWanted:
    """What the requests view lacks: with `newest` the newest rows that fit `query`; with `before` the rows that follow
    that id; with `opened` one row by its id. `stamp` tells how many requests had ended when this was wanted."""

    query: str
    stamp: int
    newest: bool = False
    before: str | None = None
    opened: str | None = None


def requests_wanted(
    fetched: FetchedRequests, query: str, stamp: int, *, at_end: bool = False, opened: str | None = None
) -> RequestsWanted | None:
    """What to ask the ledger for now, None where nothing: it is asked again only when a request ended meanwhile, the
    search changed or the last attempt failed, for older rows only where the last ones held are in sight (`at_end`)."""
    newest = fetched.total is None or fetched.query != query or fetched.stamp != stamp or fetched.trouble is not None
    before = fetched.next if at_end and fetched.query == query else None
    if not newest and before is None and opened is None:
        return None
    return RequestsWanted(query, stamp, newest, before, opened)


@dataclass(frozen=True)
class RequestsReceived:
    """A page for `wanted`: the newest, or with `older` the one that follows its `before`."""

    wanted: RequestsWanted
    page: RequestsPage
    older: bool = False


@dataclass(frozen=True)
class RequestReceived:
    """One request's row."""

    row: LedgerRow


@dataclass(frozen=True)
class RequestsFailed:
    """The ledger could not be asked, and why."""

    reason: str


@dataclass(frozen=True)
class LogReceived:
    """Log lines later than `after`."""

    after: int
    page: LogPage


@dataclass(frozen=True)
class LogFailed:
    """The log could not be asked, and why."""

    reason: str


FetchUpdate = RequestsReceived | RequestReceived | RequestsFailed | LogReceived | LogFailed


def with_update(fetched: Fetched, came: FetchUpdate) -> Fetched:
    """What is held once that came."""
    match came:
        case RequestsReceived(wanted, page, older=True):
            return replace(fetched, requests=with_older(fetched.requests, wanted.query, wanted.before or "", page))
        case RequestsReceived(wanted, page):
            return replace(fetched, requests=with_newest(fetched.requests, wanted.query, wanted.stamp, page))
        case RequestReceived(row):
            return replace(fetched, requests=replace(fetched.requests, found=row))
        case RequestsFailed(reason):
            return replace(fetched, requests=replace(fetched.requests, trouble=reason))
        case LogReceived(after, page):
            return replace(fetched, log=with_lines(fetched.log, after, page))
        case LogFailed(reason):
            return replace(fetched, log=replace(fetched.log, trouble=reason))
