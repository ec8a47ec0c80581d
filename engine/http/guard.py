"""Who may ask what: host names, web origins, API keys, and what opens the engine's inside and its controls.

The owner's socket opens everything. Over TCP an engine on loopback without any secret trusts its machine. With a secret
it trusts no address: a proxy on the same machine makes every client in the world a loopback one, and need not say so.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from engine.config import ServiceConfig
from engine.http.wire import OWNER_KEY, Header, Scope, context_of, header
from engine.process.keyring import ADMIN, METRICS, TOKENS, Keyring
from engine.process.listening import is_loopback
from engine.request import RequestError

_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")


class Guard:
    """Keeps web pages out: a page can make its visitor's browser call a loopback server, but it can forge neither
    `Host` (a name rebound to 127.0.0.1 still shows) nor `Origin`. Keeps strangers out by API keys."""

    def __init__(self, service: ServiceConfig) -> None:
        """Raises SecretsUnusable."""
        self.service = service
        self._keyring = Keyring(service.secrets_file)
        self._only_local = is_loopback(service.host)

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

    def check_key(self, scope: Scope) -> str | None:
        """The label of the API key that a request to /v1 carries, as `Authorization: Bearer` or `x-api-key`. None where
        none is needed: elsewhere, from the owner, and on an engine without keys. Raises RequestError(401)."""
        if not str(scope["path"]).startswith("/v1/") or (self._only_local and not self._keyring.has_api_keys):
            return None
        given = [key for key in (_bearer(scope), header(scope, b"x-api-key")) if key]
        for key in given:
            label = self._keyring.label_of(key.encode("latin-1"))
            if label is not None and label not in TOKENS:
                return label
        if is_owners(scope):
            return None
        problem = ', error="invalid_token"' if given else ""
        context_of(scope).headers.append((b"www-authenticate", f'Bearer realm="tandem"{problem}'.encode()))
        raise RequestError(
            "the API key is none of this engine's"
            if given
            else "this engine wants an API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            status=401,
            code="invalid_api_key",
        )

    @property
    def wants_tokens(self) -> bool:
        """Whether no TCP address is trusted: with any key or token, and where other machines reach the engine."""
        settings = self.service.admin_token or self.service.metrics_token
        return not self._only_local or bool(settings) or self._keyring.has_any

    def trusts(self, scope: Scope) -> bool:
        """Whether where the request comes from opens everything: the owner's socket, and loopback where no token is
        wanted."""
        return is_owners(scope) or (is_local(scope) and not self.wants_tokens)

    def may_see_inside(self, scope: Scope) -> bool:
        """Whether the body of `/health`, `/metrics`, `/slots` and what `/admin` tells is for this client."""
        return self.trusts(scope) or self._token_of(scope) is not None

    def may_act(self, scope: Scope) -> bool:
        """Whether this client may use the engine's controls."""
        return self.trusts(scope) or self._token_of(scope) == ADMIN

    def require_inside(self, scope: Scope) -> None:
        """Raises RequestError(403) for a client that may not see inside."""
        if not self.may_see_inside(scope):
            raise self._not_for(scope, "the metrics or admin token", "metrics", "not_local")

    def require_operator(self, scope: Scope) -> None:
        """Raises RequestError(403) for a client that may not act. Where its origin is all that it takes, a web page may
        not: the operator's own browser would act for whoever wrote it."""
        if not self.may_act(scope):
            raise self._not_for(scope, "the admin token", "admin", "not_operator")
        if header(scope, b"origin") is not None and self._token_of(scope) != ADMIN:
            raise RequestError("without an admin token no web page may do this", status=403, code="not_operator")

    def _not_for(self, scope: Scope, token: str, label: str, code: str) -> RequestError:
        """The refusal that says which token opens a path, and what opens it without one."""
        else_ = (
            f"`tandem secrets rotate {label}` makes it, and the engine's owner needs none through its socket"
            if self.wants_tokens
            else "this engine's own machine needs none, unless a proxy forwards"
        )
        words = f"{str(scope['path'])[:200]} wants {token} as `Authorization: Bearer TOKEN`; {else_}"
        return RequestError(words, status=403, code=code)

    def _token_of(self, scope: Scope) -> str | None:
        """Which token the client has: `admin`, `metrics` or none."""
        given = (_bearer(scope) or "").encode("latin-1")
        if not given:
            return None
        settings = ((ADMIN, self.service.admin_token), (METRICS, self.service.metrics_token))
        for name, token in settings:
            if token and hmac.compare_digest(given, token.encode()):
                return name
        label = self._keyring.label_of(given)
        return label if label in TOKENS else None


def _bearer(scope: Scope) -> str | None:
    scheme, _, given = (header(scope, b"authorization") or "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def is_owners(scope: Scope) -> bool:
    """Whether the request came through the owner's socket."""
    return bool(scope.get(OWNER_KEY, False))


def is_local(scope: Scope) -> bool:
    """A forwarded request is not local, however near the proxy that sends it."""
    client = scope.get("client")
    forwarded = any(header(scope, name) is not None for name in _FORWARDED)
    return client is not None and is_loopback(client[0]) and not forwarded


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
