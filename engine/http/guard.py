"""Who may ask what: host names, web origins, loopback, and the tokens that open metrics elsewhere."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.config import ServiceConfig
from engine.http.wire import Header, Scope, header
from engine.request import RequestError

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


@dataclass(frozen=True, slots=True)
class Guard:
    """Keeps web pages out: a page can make its visitor's browser call a loopback server, but it can forge neither
    `Host` (a name rebound to 127.0.0.1 still shows) nor `Origin`."""

    service: ServiceConfig

    def check_host(self, scope: Scope) -> None:
        """Raises RequestError(403) for a `Host` that is neither a loopback name, a literal address nor configured."""
        value = header(scope, b"host")
        if value is None:
            return
        host = _host_of(value)
        allowed = {"localhost", self.service.host.lower(), *(name.lower() for name in self.service.allowed_hosts)}
        if host in allowed or host.endswith(".localhost") or _is_address(host):
            return
        raise RequestError(
            f"the Host header names {value[:80]!r}, which this server does not answer to; add it to the allowed hosts",
            status=403,
            code="host_not_allowed",
        )

    def allows_origin(self, origin: str) -> bool:
        if "*" in self.service.allowed_origins or origin in self.service.allowed_origins:
            return True
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            return False
        return host is not None and (host == "localhost" or host.endswith(".localhost") or is_loopback(host))

    def check_origin(self, scope: Scope) -> list[Header]:
        """The headers that let the page at an allowed origin read the answer. Raises RequestError(403) for others."""
        origin = header(scope, b"origin")
        if origin is None:
            return []
        if not self.allows_origin(origin):
            raise RequestError(
                f"pages of the origin {origin[:80]!r} may not call this server; add it to the allowed origins",
                status=403,
                code="origin_not_allowed",
            )
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, x-tandem-wait, x-tandem-max-tokens, retry-after"),
            (b"vary", b"origin"),
        ]

    def preflight(self, scope: Scope) -> list[Header]:
        """The headers of an `OPTIONS` answer: permissions for an allowed origin, none for others. Needs no key."""
        try:
            headers = self.check_origin(scope)
        except RequestError:
            return [(b"vary", b"origin")]
        if not headers:
            return [(b"allow", b"GET, HEAD, POST, OPTIONS")]
        asked = header(scope, b"access-control-request-headers") or "authorization, content-type"
        return [
            *headers,
            (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"),
            (b"access-control-allow-headers", asked.encode("latin-1")),
            (b"access-control-max-age", b"600"),
        ]

    def may_see_inside(self, scope: Scope) -> bool:
        """Whether the body of `/health`, `/metrics` and `/slots` is for this client: loopback, or one with a token.

        A forwarded request is not local, however near the proxy that sends it.
        """
        client = scope.get("client")
        forwarded = any(header(scope, name) is not None for name in _FORWARDED)
        if client is not None and is_loopback(client[0]) and not forwarded:
            return True
        scheme, _, given = (header(scope, b"authorization") or "").partition(" ")
        tokens = [t for t in (self.service.metrics_token, self.service.admin_token) if t]
        return scheme.lower() == "bearer" and any(hmac.compare_digest(given.encode(), t.encode()) for t in tokens)


def is_loopback(host: str) -> bool:
    """Whether the literal address is a loopback one; a name never is."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_of(value: str) -> str:
    """The host of `host`, `host:port` or `[v6]:port`, lower case."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.partition(":")[0].rstrip(".").lower()
