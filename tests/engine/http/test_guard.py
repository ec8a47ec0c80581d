"""Who may ask: hosts, origins, preflights; and the table of what opens to whom."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import ServiceConfig
from engine.http.guard import Guard
from engine.http.wire import CONTEXT_KEY, OWNER_KEY, Context
from engine.process.keyring import Secret, digest, write_secrets
from engine.request import RequestError
from tests.engine.http.talk import CHAT, chat_body, error_of
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import served


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "a.localhost", "10.0.0.5"]
)
def test_hosts_served(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_foreign_hosts_refused(client: httpx.Client, engine: ScriptedEngine, host: str) -> None:
    for response in (
        client.post(CHAT, json=chat_body(), headers={"Host": host}),
        client.get("/health", headers={"Host": host}),
    ):
        assert response.status_code == 403
        assert error_of(response)["code"] == "host_not_allowed"
    assert engine.tickets == []


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:5173", "https://[::1]:1"])
def test_pages_on_this_machine_may_call(client: httpx.Client, origin: str) -> None:
    response = client.post(CHAT, json=chat_body(), headers={"Origin": origin})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://[bad"])
def test_foreign_pages_may_not(client: httpx.Client, engine: ScriptedEngine, origin: str) -> None:
    response = client.post(CHAT, json=chat_body(), headers={"Origin": origin})
    assert response.status_code == 403
    assert error_of(response)["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in response.headers
    assert engine.tickets == []


def test_preflights(client: httpx.Client) -> None:
    """Always 2xx and without a key; permission only for origins that have it."""
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-client"}
    allowed = client.options(CHAT, headers={"Origin": "http://localhost:3000", **asks})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert allowed.headers["access-control-allow-headers"] == "authorization,x-client"
    assert "POST" in allowed.headers["access-control-allow-methods"]
    foreign = client.options(CHAT, headers={"Origin": "https://evil.example", **asks})
    assert foreign.status_code == 204
    assert "access-control-allow-origin" not in foreign.headers
    assert client.options("/health").status_code == 204


def test_configured_hosts_and_origins() -> None:
    guard = Guard(ServiceConfig(allowed_hosts=("box.lan",), allowed_origins=("https://chat.example",)))
    guard.check_host(scope(host="BOX.lan:8000"))
    assert guard.allows_origin("https://chat.example")
    assert not guard.allows_origin("http://chat.example")
    assert Guard(ServiceConfig(allowed_origins=("*",))).allows_origin("https://any.example")


def scope(*, client: str | None = "127.0.0.1", path: str = "/v1/models", **headers: str) -> dict[str, Any]:
    return {
        "path": path,
        "client": None if client is None else (client, 5),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        CONTEXT_KEY: Context("req-1", []),
    }


PEERS: dict[str, dict[str, Any]] = {
    "socket": scope(client=None) | {OWNER_KEY: True},
    "loopback": scope(),
    "loopback, v6": scope(client="::1"),
    "loopback, mapped": scope(client="::ffff:127.0.0.1"),
    "forwarded": scope(x_forwarded_for="203.0.113.9"),
    "forwarded, other header": scope(via="1.1 proxy"),
    "network": scope(client="192.168.1.5"),
    "gone": scope(client=None),
}
"""Where requests come from. A client that has gone has no address, and neither has one on the owner's socket."""

SECRETS = {
    "none": {},
    "key": {"phone": "the-key"},
    "old key": {"phone until": "the-key"},
    "metrics": {"metrics": "the-metrics-token"},
    "admin": {"admin": "the-admin-token"},
    "all": {"phone": "the-key", "metrics": "the-metrics-token", "admin": "the-admin-token"},
}

ALL, NOTHING, ASKS = {"inside", "controls", "v1"}, set[str](), {"v1"}

MATRIX: list[tuple[str, str, str, set[str]]] = [
    # secrets, peer, what it brings, what opens
    ("none", "loopback", "", ALL),
    ("none", "loopback, v6", "", ALL),
    ("none", "loopback, mapped", "", ALL),
    ("none", "forwarded", "", ASKS),
    ("none", "forwarded, other header", "", ASKS),
    ("none", "network", "", ASKS),
    ("none", "gone", "", ASKS),
    *((secrets, "socket", "", ALL) for secrets in SECRETS),
    # With any secret no TCP peer is trusted for where it comes from.
    *((secrets, peer, "", NOTHING) for secrets in ("key", "old key", "all") for peer in PEERS if peer != "socket"),
    *((secrets, peer, "", ASKS) for secrets in ("metrics", "admin") for peer in PEERS if peer != "socket"),
    # What each secret opens, from anywhere.
    *(("all", peer, "the-key", ASKS) for peer in ("loopback", "forwarded", "network")),
    *(("all", peer, "the-metrics-token", {"inside"}) for peer in ("loopback", "forwarded", "network")),
    *(("all", peer, "the-admin-token", {"inside", "controls"}) for peer in ("loopback", "forwarded", "network")),
    ("all", "loopback", "another", NOTHING),
    ("key", "loopback", "the-admin-token", NOTHING),
    ("old key", "loopback", "the-key", NOTHING),
    ("all", "socket", "another", ALL),
]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("secrets", "peer", "given", "opens"), MATRIX)
def test_who_may_ask_what(tmp_path: Path, host: str, secrets: str, peer: str, given: str, opens: set[str]) -> None:
    if (host, secrets) == ("0.0.0.0", "none"):
        # It cannot start so; but its last key may go while it runs, and then it lets nobody in but the owner.
        opens = ALL if peer == "socket" else NOTHING
    elif host == "0.0.0.0" and secrets in ("metrics", "admin") and peer != "socket":
        opens = opens - ASKS
    path = tmp_path / "secrets.json"
    write_secrets(
        path,
        tuple(
            Secret(label.removesuffix(" until"), digest(text.encode()), 0.0, 1.0 if label.endswith(" until") else None)
            for label, text in SECRETS[secrets].items()
        ),
    )
    guard = Guard(ServiceConfig(host=host, secrets_file=path))
    asked = PEERS[peer] | {"headers": [*PEERS[peer]["headers"]], CONTEXT_KEY: Context("req-1", [])}
    if given:
        asked["headers"].append((b"authorization", f"Bearer {given}".encode()))
    opened = {"inside"} if guard.may_see_inside(asked) else set()
    opened |= {"controls"} if guard.may_act(asked) else set()
    with suppress(RequestError):
        guard.check_key(asked)
        opened.add("v1")
    assert opened == opens


@pytest.mark.parametrize("setting", ["metrics_token", "admin_token"])
def test_a_token_of_the_settings_counts_as_a_secret(setting: str) -> None:
    guard = Guard(ServiceConfig(**{setting: "of-a-setting"}))
    assert not guard.may_see_inside(scope())
    assert guard.may_see_inside(scope(authorization="bearer of-a-setting"))
    assert guard.may_act(scope(authorization="Bearer of-a-setting")) is (setting == "admin_token")
    for wrong in ("of-a-setting", "Bearer ", "Basic of-a-setting"):
        assert not guard.may_see_inside(scope(authorization=wrong))


def test_an_empty_token_opens_nothing() -> None:
    guard = Guard(ServiceConfig(metrics_token=""))
    assert not guard.may_see_inside(scope(client="192.168.1.5", authorization="Bearer "))


INSIDE = ("/metrics", "/slots", "/admin/requests", "/admin/requests/req-1", "/admin/log")
CONTROLS = ("/admin/requests/req-1/cancel", "/admin/roles/x/load", "/admin/roles/x/unload", "/admin/drain")


def test_every_route_asks_the_guard(tmp_path: Path, engine: ScriptedEngine) -> None:
    """From loopback, with an API key configured and none of it sent."""
    path = tmp_path / "secrets.json"
    write_secrets(path, (Secret("phone", digest(b"the-key"), 0.0),))
    service = ServiceConfig(secrets_file=path)
    with served(engine, service) as server, httpx.Client(base_url=server.url, timeout=LONG_S) as client:
        health = client.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        for route in INSIDE:
            refused = client.get(route)
            assert (refused.status_code, error_of(refused)["code"]) == (403, "not_local"), route
            assert "`tandem secrets rotate metrics` makes it" in error_of(refused)["message"]
        for route in (*CONTROLS, "/admin/resume"):
            refused = client.post(route)
            assert (refused.status_code, error_of(refused)["code"]) == (403, "not_operator"), route
        assert not engine.draining


def test_a_first_key_closes_what_a_kept_connection_polls(tmp_path: Path, engine: ScriptedEngine) -> None:
    path = tmp_path / "secrets.json"
    with (
        served(engine, ServiceConfig(secrets_file=path)) as server,
        httpx.Client(base_url=server.url, timeout=LONG_S) as client,
    ):
        assert [bool(client.get("/health").content) for _ in range(3)] == [True] * 3
        write_secrets(path, (Secret("phone", digest(b"the-key"), 0.0),))
        assert [bool(client.get("/health").content) for _ in range(2)] == [False] * 2


def test_forwarded_clients_see_the_status_alone(client: httpx.Client) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}
    health = client.get("/health", headers=elsewhere)
    assert (health.status_code, health.content) == (200, b"")
    for path in ("/metrics", "/slots"):
        assert client.get(path, headers=elsewhere).status_code == 403
