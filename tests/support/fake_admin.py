"""What a scripted engine answers on `/admin/*`: a ledger of requests, a log that grows, and actions that it notes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from engine.http.errors import ErrorBody, ErrorDetail
from engine.protocol import ActionReply, Finish, Health, LedgerRow, LogLine, LogPage, RequestsPage, encode

ROWS = 240
STARTED_AT = 1_795_980_000.0
"""When the first request of the ledger came, in Unix seconds."""

LINES_A_SECOND = 2.0
LINES_BEFORE = 120

_CLIENTS = ("opencode", "open-webui", "curl", "aider", "日本語クライアント")
_ENDINGS: tuple[tuple[Finish, str | None], ...] = (
    (Finish.STOP, None),
    (Finish.STOP, None),
    (Finish.LENGTH, None),
    (Finish.STOP, None),
    (Finish.ABANDONED, "its client left; 61 tokens had been generated"),
    (Finish.STOP, None),
    (Finish.REFUSED, "the queue is full: 8 requests waiting, the limit is 8 (TANDEM_QUEUE_LIMIT)"),
    (Finish.STOP, None),
    (Finish.TIMEOUT, "no slot came free within 240 s (TANDEM_QUEUE_TIMEOUT): all 4 slots are busy"),
    (Finish.LENGTH, None),
    (Finish.ERROR, "this request failed in the engine: logits are not finite"),
    (Finish.STOP, None),
    (Finish.CANCELLED, "cancelled by the operator"),
)


def ledger_row(number: int) -> LedgerRow:
    """Request `number` of the ledger; every way to end comes up."""
    finish, reason = _ENDINGS[number % len(_ENDINGS)]
    arrived = STARTED_AT + 7.3 * number
    ran = finish not in (Finish.REFUSED, Finish.TIMEOUT)
    tokens = 40 + number * 13 % 216 if ran else 0
    queue = 0.01 + (number % 9) * 0.15
    prefill = 0.18 + (number % 5) * 0.11
    decode = tokens / 30.5
    total = queue + prefill + decode if ran else 240.0 if finish is Finish.TIMEOUT else 0.0
    return LedgerRow(
        id=f"req-{0x6000 + number:04x}",
        client=_CLIENTS[number % len(_CLIENTS)],
        model="smollm2-135m",
        slot=number % 4 if ran else None,
        arrived_at=arrived,
        finished_at=arrived + total,
        prompt_tokens=120 + number * 37 % 900,
        cached_tokens=64 * (number % 3) if ran else 0,
        cache_source="resident" if ran and number % 3 else "none",
        completion_tokens=tokens,
        max_tokens=256 if ran else None,
        finish=finish,
        reason=reason,
        queue_s=queue if ran else None,
        ttft_s=queue + prefill if ran else None,
        prefill_s=prefill if ran else None,
        decode_s=decode if ran else None,
        total_s=total,
        tok_s=30.5 if ran else None,
        worst_gap_s=0.062 if ran else None,
        route=("home", "empty", "least recently used")[number % 3] if ran else None,
    )


def log_line(seq: int) -> LogLine:
    """Line `seq` of the log: a routing decision and an ended request in turn, now and then a warning."""
    row = ledger_row(seq % ROWS)
    at = STARTED_AT + seq / LINES_A_SECOND
    if seq % 17 == 0:
        text = "memory is short: 24 MiB came back from idle side conversations"
        return LogLine(seq=seq, at=at, level="warning", event="[memory]", text=text, request=None)
    if seq % 2:
        text = f"slot={row.slot} rule={row.route} prompt={row.prompt_tokens} cached={row.cached_tokens}"
        return LogLine(seq=seq, at=at, level="info", event="[parallel]", text=text, request=row.id)
    text = f"client={row.client} slot={row.slot} prompt={row.prompt_tokens} completion={row.completion_tokens}"
    level = "error" if row.finish is Finish.ERROR else "info"
    return LogLine(seq=seq, at=at, level=level, event="[req]", text=f"{text} finish={row.finish}", request=row.id)


@dataclass
class FakeAdmin:
    """Answers for one fake engine. `acted` keeps the paths of the actions it took; with `token` set, one without it is
    refused."""

    token: str | None = None
    acted: list[str] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=lambda: [ledger_row(number) for number in range(ROWS)])
    _started: float = field(default_factory=time.monotonic)

    def get(self, target: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/admin/requests":
            return 200, encode(self._page(query))
        if parts.path == "/admin/log":
            return 200, encode(self._log(query))
        wanted = unquote(parts.path.removeprefix("/admin/requests/"))
        row = next((row for row in self.rows if row.id == wanted), None)
        return (404, _error(f"no request {wanted!r} in the ledger")) if row is None else (200, encode(row))

    def post(self, path: str, authorization: str | None, body: Health) -> tuple[int, bytes]:
        """Status and body of an action on the engine that shows `body`."""
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 403, _error("actions need the admin token (TANDEM_ADMIN_TOKEN)")
        if path == "/admin/drain":
            return self._did(path, "draining: what runs may finish, nothing new is accepted")
        if path == "/admin/resume":
            return self._did(path, "the engine accepts requests again")
        kind, name, verb = [unquote(part) for part in path.split("/")[2:]]
        if kind == "requests":
            here = [lane.request.id for lane in body.lanes if lane.request] + [entry.id for entry in body.queue]
            if name not in here:
                return 404, _error(f"no request {name!r} runs or waits")
            return self._did(path, f"{name} is cancelled")
        role = next((role for role in body.roles if role.name == name), None)
        if role is None:
            return 404, _error(f"no role {name!r}")
        return 409, _error(f"cannot {verb} {name}: {role.reason}")

    def _did(self, path: str, message: str) -> tuple[int, bytes]:
        self.acted.append(path)
        return 200, encode(ActionReply(done=True, message=message))

    def _page(self, query: dict[str, str]) -> RequestsPage:
        limit = int(query.get("limit", "50"))
        fits = [
            row
            for row in reversed(self.rows)
            if query.get("q", "").lower() in f"{row.id} {row.client} {row.model} {row.reason}".lower()
            and query.get("client", row.client) == row.client
            and query.get("finish", row.finish) == row.finish
        ]
        total = len(fits)
        if "before" in query:
            fits = fits[1 + next((n for n, row in enumerate(fits) if row.id == query["before"]), total) :]
        page = fits[:limit]
        return RequestsPage(rows=page, next=page[-1].id if len(fits) > limit else None, total=total)

    def _log(self, query: dict[str, str]) -> LogPage:
        newest = LINES_BEFORE + int((time.monotonic() - self._started) * LINES_A_SECOND)
        after, limit = int(query.get("after", "0")), int(query.get("limit", "500"))
        lines = [log_line(seq) for seq in range(after + 1, newest + 1)]
        fits = [
            line
            for line in lines
            if query.get("q", "").lower() in f"{line.event} {line.text}".lower()
            and query.get("request", line.request) == line.request
        ][:limit]
        return LogPage(lines=fits, next=fits[-1].seq if len(fits) == limit else newest)


def _error(message: str) -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, "invalid_request_error", None, "refused")))
