"""The console's only network code: asks an engine's `/health` and says in one sentence what went wrong."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Protocol

import httpx
import msgspec

from engine.protocol import CONTRACT, Health, decode_health

_TIMEOUT = httpx.Timeout(2.0)
_WANTS_TOKEN = "the rest wants a token, set TANDEM_METRICS_TOKEN"


class Unreachable(Exception):
    """No usable snapshot came back; the text says why, in words for the screen."""


class BadAddress(ValueError):
    """The address given is none that can be asked; the text names it and says what is wrong."""


class Tap(Protocol):
    """Is told of everything that a client gets: bodies as they came, and attempts that brought nothing."""

    def snapshot(self, url: str, body: bytes) -> None: ...

    def missed(self, url: str, reason: str) -> None: ...


class HealthClient:
    """One kept-alive connection to `URL/health`. Use as an async context manager; raises BadAddress."""

    def __init__(self, url: str, tap: Tap | None = None) -> None:
        self.url = url.rstrip("/")
        self._tap = tap
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise BadAddress(f"--url {url}: {error}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise BadAddress(f"--url {url}: must be an address like http://127.0.0.1:8000")
        # Proxies of the environment are for the outside world; an engine is asked directly.
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, headers=_headers())
        self._request = self._http.build_request("GET", f"{self.url}/health")

    async def fetch(self) -> Health:
        """The engine's newest snapshot, whatever its status code; raises Unreachable."""
        try:
            health, body = await self._ask()
        except Unreachable as error:
            if self._tap is not None:
                self._tap.missed(self.url, str(error))
            raise
        if self._tap is not None:
            self._tap.snapshot(self.url, body)
        return health

    async def _ask(self) -> tuple[Health, bytes]:
        try:
            response = await self._http.send(self._request)
        except httpx.TimeoutException:
            raise Unreachable(f"no answer within {_TIMEOUT.read:.0f} s") from None
        except httpx.HTTPError as error:
            raise Unreachable(_why(error)) from error
        if response.status_code in (401, 403):
            raise Unreachable(f"status {response.status_code}: {_WANTS_TOKEN}")
        try:
            return decode_health(response.content), response.content
        except msgspec.MsgspecError as error:
            if status := _status_alone(response.content):
                raise Unreachable(f"it says only “{status}”: {_WANTS_TOKEN}") from None
            raise Unreachable(f"status {response.status_code}, not a {CONTRACT} body: {error}") from error

    async def __aenter__(self) -> HealthClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()


def _headers() -> dict[str, str]:
    # The one that opens less comes first.
    token = os.environ.get("TANDEM_METRICS_TOKEN") or os.environ.get("TANDEM_ADMIN_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _status_alone(body: bytes) -> str:
    """The status of a body that holds nothing else: what an engine tells to whom it does not know."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.MsgspecError:
        return ""
    return fields["status"] if set(fields) == {"status"} else ""


def _why(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        text = str(error)
        if "refused" in text or "attempts failed" in text:
            return "connection refused"
        return f"cannot connect: {text}"
    return str(error) or type(error).__name__
