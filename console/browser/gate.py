"""Who may see the console in a browser: a token that is exchanged for a cookie, and the checks of every request."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_OPEN = "open the address that `tandem console --web` printed"
# The page's own script, styles that it writes itself, its font; nothing from elsewhere and nobody's frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ENTERED = '<!DOCTYPE html><meta charset="utf-8"><title>tandem console</title><a href="/">Open the console</a>'


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Gate:
    """Checks of every request, in this order: the name it was sent to, where it comes from, the token or the cookie.

    The `Host` must be a loopback name, whatever its port (a tunnel's differs): a foreign name that was pointed at this
    box is refused. An `Origin` must be the page's own, and the websocket must have one, since a browser lets any page
    open a websocket with this page's cookies. The token's only use is `/?token=`: the answer sets the cookie and goes
    on to `/`, so that neither history nor a referrer keeps it.
    """

    token: str = field(default_factory=_secret, repr=False)
    _cookie: str = field(default_factory=_secret, repr=False)
    # Cookies know no ports: two consoles of one box would take turns with one name.
    _cookie_name: str = field(default_factory=lambda: f"tandem_{secrets.token_hex(4)}")

    def install(self, app: web.Application) -> None:
        """Put the checks before every route of the app."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app.middlewares.append(guard)
        app.on_response_prepare.append(_add_headers)

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if _name(host) not in _LOOPBACK:
            raise web.HTTPForbidden(text=f"this is no name of the console: {_OPEN}")
        if origin is not None and origin != f"http://{host}":
            raise web.HTTPForbidden(text="another page may not ask the console")
        if request.path == "/" and "token" in request.query:
            return self._enter(request.query["token"])
        if not _equal(request.cookies.get(self._cookie_name, ""), self._cookie):
            raise web.HTTPUnauthorized(text=_OPEN)
        if request.path == "/ws" and origin is None:
            raise web.HTTPForbidden(text="only the console's own page may connect")
        return await handler(request)

    def _enter(self, token: str) -> web.Response:
        if not _equal(token, self.token):
            raise web.HTTPUnauthorized(text=f"this token is not the console's: {_OPEN}")
        # Not a redirect: after a click in another site's page the browser would withhold the strict cookie from it.
        response = web.Response(text=_ENTERED, content_type="text/html", headers={"Refresh": "0; url=/"})
        response.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="Strict", path="/")
        return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    host = request.headers.get("Host", "")
    named = host if _name(host) in _LOOPBACK else "localhost"
    response.headers.update(
        {
            "Content-Security-Policy": _POLICY.format(host=named),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
    )


def _name(host: str) -> str:
    """The host without its port."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).lower()


def _equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
