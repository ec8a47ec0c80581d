"""What an operator asks and does: the ledger, the log, cancelling, roles, draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.api import EnginePort
from engine.core.scheduling.inbox import cancelled
from engine.http.errors import invalid
from engine.http.guard import Guard
from engine.http.query import Query
from engine.http.stream_handler import OpenStreams
from engine.http.wire import Header, Receive, Scope, Send, respond
from engine.process.ledger.reader import PAGE_LIMIT, LedgerReader, Search, TookTooLong, UnknownRow
from engine.process.ledger.store import LedgerUnusable
from engine.process.log_ring import LogRing, LogSearch
from engine.protocol import ActionReply, Finish, Wire, encode
from engine.request import Ending, RequestError

LOG_PAGE_LIMIT = 1000
LARGEST = 10**15

_NO_STORE: list[Header] = [(b"cache-control", b"no-store")]
T = TypeVar("T")


class Admin:
    """The `/admin` routes. Reading is for whoever sees inside, acting for the operator; nothing waits for the engine.

    The ledger is read on one thread of its own: a long search holds up other searches and nothing else. Once the
    service is `ending`, its drain is for good.
    """

    def __init__(self, engine: EnginePort, guard: Guard, streams: OpenStreams, log: LogRing) -> None:
        self._engine = engine
        self._guard = guard
        self._streams = streams
        self._log = log
        self.ending = False
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tandem-ledger-reader")

    async def requests(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_inside(scope)
        query = Query(scope, "limit", "before", "q", "client", "finish")
        search = Search(
            limit=query.integer("limit", 50, low=1, high=PAGE_LIMIT),
            before=query.text("before"),
            q=query.text("q"),
            client=query.text("client"),
            finish=query.choice("finish", Finish),
        )
        reader = self._reader()
        try:
            page = await self._asked(lambda: reader.page(search))
        except UnknownRow:
            raise invalid("before", f"must be the id of a request in the ledger, got {search.before!r}") from None
        await _answer(scope, send, page)

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_inside(scope)
        reader, wanted = self._reader(), str(scope["path_params"]["id"])
        row = await self._asked(lambda: reader.find(wanted))
        if row is None:
            raise _unknown(f"no request {wanted[:100]!r} is in the ledger")
        await _answer(scope, send, row)

    async def log(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_inside(scope)
        query = Query(scope, "after", "limit", "q", "request")
        search = LogSearch(
            after=query.integer("after", 0, low=0, high=LARGEST),
            limit=query.integer("limit", 500, low=1, high=LOG_PAGE_LIMIT),
            q=query.text("q"),
            request=query.text("request"),
        )
        await _answer(scope, send, self._log.page(search))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_operator(scope)
        wanted = str(scope["path_params"]["id"])
        found = self._streams.find(wanted)
        if not found:
            raise _unknown(f"no request {wanted[:100]!r} runs or waits")
        for request_id in found:
            self._engine.end(request_id, cancelled(), Ending.CANCELLED)
        verb = "is" if len(found) == 1 else "are"
        await _answer(scope, send, ActionReply(done=True, message=f"{', '.join(found)} {verb} cancelled"))

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refuse_role(scope, "be loaded")

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refuse_role(scope, "be unloaded")

    def _refuse_role(self, scope: Scope, verb: str) -> None:
        """Roles do not run yet: what the planner decided is all that there is to say."""
        self._guard.require_operator(scope)
        wanted = str(scope["path_params"]["name"])
        role = next((role for role in self._engine.health().roles if role.name == wanted), None)
        if role is None:
            raise _unknown(f"there is no role {wanted[:100]!r}")
        fits = f"; it would fit with {role.to_fit}" if role.to_fit else ""
        raise RequestError(f"{wanted} cannot {verb}: {role.reason}{fits}", status=409, code="cannot_be_done")

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_operator(scope)
        done = self._engine.drain()
        words = "the engine drains: what runs may finish, nothing new is accepted until it resumes"
        await _answer(scope, send, ActionReply(done=done, message=words if done else "the engine drains already"))

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_operator(scope)
        if self.ending:
            raise RequestError("the engine was told to end; start it again", status=409, code="cannot_be_done")
        done = self._engine.resume()
        words = "the engine accepts requests again" if done else "the engine does not drain"
        await _answer(scope, send, ActionReply(done=done, message=words))

    def _reader(self) -> LedgerReader:
        reader = self._engine.ledger
        if reader is None:
            raise RequestError(
                "no ledger is kept: TANDEM_LEDGER_DAYS is 0, or the engine has no state directory",
                status=409,
                code="no_ledger",
            )
        return reader

    async def _asked(self, question: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._aside, question)
        except LedgerUnusable as why:
            raise RequestError(str(why), status=503, code="ledger_unusable") from why
        except TookTooLong as why:
            raise RequestError(str(why), status=503, code="search_too_long") from why


def _unknown(what: str) -> RequestError:
    return RequestError(what, status=404, code="not_found")


async def _answer(scope: Scope, send: Send, body: Wire) -> None:
    await respond(scope, send, 200, encode(body), headers=_NO_STORE)
