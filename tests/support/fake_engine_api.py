"""What a scripted engine answers beside `/health`, in this process: no socket, no clock, a note of each question."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

import msgspec

from console.session.api import LOG_PAGE, EngineAction, NotFound, RequestsQuery, Unreachable
from engine.http.errors import ErrorBody
from engine.protocol import ActionReply, Health, LedgerRow, LogLine, LogPage, RequestsPage
from tests.support.fake_admin import FakeAdmin, log_line


@dataclass
class FakeEngineApi:
    """`asked` keeps the questions in order. `lines` is the log as it stands, `shown` the snapshot that actions are
    judged by; with `trouble` nothing is answered, and `lacks` stands for an engine that knows none of these routes."""

    admin: FakeAdmin = field(default_factory=FakeAdmin)
    lines: list[LogLine] = field(default_factory=lambda: [log_line(seq) for seq in range(1, 121)])
    asked: list[str] = field(default_factory=list)
    shown: Health | None = None
    trouble: str | None = None
    lacks: str | None = None

    async def fetch_requests(self, query: RequestsQuery) -> RequestsPage:
        given = {"q": query.text, "limit": str(query.limit), "before": query.before or ""}
        path = "/admin/requests?" + urlencode({name: value for name, value in given.items() if value})
        return msgspec.json.decode(self._get(path), type=RequestsPage)

    async def fetch_request(self, request_id: str) -> LedgerRow:
        return msgspec.json.decode(self._get(f"/admin/requests/{quote(request_id)}"), type=LedgerRow)

    async def fetch_log(self, after: int, limit: int = LOG_PAGE) -> LogPage:
        self._ask(f"/admin/log?after={after}")
        fits = [line for line in self.lines if line.seq > after][:limit]
        newest = self.lines[-1].seq if self.lines else 0
        return LogPage(lines=fits, next=fits[-1].seq if len(fits) == limit else newest)

    async def act(self, action: EngineAction) -> ActionReply:
        self._ask(action.path)
        assert self.shown is not None
        status, body = self.admin.post(action.path, None, self.shown)
        if status == 200:
            return msgspec.json.decode(body, type=ActionReply)
        return ActionReply(done=False, message=msgspec.json.decode(body, type=ErrorBody).error.message)

    def _ask(self, path: str) -> None:
        self.asked.append(path)
        if self.trouble is not None:
            raise Unreachable(self.trouble)
        if self.lacks is not None:
            raise NotFound(self.lacks)

    def _get(self, path: str) -> bytes:
        self._ask(path)
        status, body = self.admin.get(path)
        if status == 404:
            raise NotFound(msgspec.json.decode(body, type=ErrorBody).error.message)
        return body
