"""Who may ask: hosts, origins, preflights, loopback and tokens."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.config import ServiceConfig
from engine.http.guard import Guard
from tests.engine.http.talk import CHAT, chat_body, error_of
from tests.support.scripted_engine import ScriptedEngine


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


def scope(*, client: str | None = "127.0.0.1", **headers: str) -> dict[str, Any]:
    return {
        "client": None if client is None else (client, 5),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (scope(), True),
        (scope(client="::1"), True),
        (scope(client="::ffff:127.0.0.1"), True),
        (scope(client="192.168.1.5"), False),
        (scope(client=None), False),
        (scope(x_forwarded_for="203.0.113.9"), False),
        (scope(via="1.1 proxy"), False),
        (scope(x_forwarded_host="chat.example"), False),
        (scope(client="192.168.1.5", authorization="Bearer metrics-key"), True),
        (scope(client="192.168.1.5", authorization="bearer admin-key"), True),
        (scope(client="192.168.1.5", authorization="Bearer other"), False),
        (scope(client="192.168.1.5", authorization="metrics-key"), False),
        (scope(client="192.168.1.5", authorization="Bearer "), False),
    ],
)
def test_who_sees_inside(asked: dict[str, Any], allowed: bool) -> None:
    guard = Guard(ServiceConfig(metrics_token="metrics-key", admin_token="admin-key"))
    assert guard.may_see_inside(asked) is allowed


def test_no_token_opens_nothing() -> None:
    guard = Guard(ServiceConfig(metrics_token=""))
    assert not guard.may_see_inside(scope(client="192.168.1.5", authorization="Bearer "))


def test_forwarded_clients_see_the_status_alone(client: httpx.Client) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}
    health = client.get("/health", headers=elsewhere)
    assert (health.status_code, health.content) == (200, b"")
    for path in ("/metrics", "/slots"):
        assert client.get(path, headers=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("service", "asked", "allowed"),
    [
        (ServiceConfig(), scope(), True),
        (ServiceConfig(), scope(client="192.168.1.5"), False),
        (ServiceConfig(), scope(x_forwarded_for="203.0.113.9"), False),
        (ServiceConfig(admin_token="admin-key"), scope(), False),
        (ServiceConfig(admin_token="admin-key"), scope(authorization="Bearer admin-key"), True),
        (ServiceConfig(admin_token="admin-key", metrics_token="m"), scope(authorization="Bearer m"), False),
        (ServiceConfig(admin_token="admin-key"), scope(client="10.0.0.5", authorization="Bearer admin-key"), True),
    ],
)
def test_who_may_act(service: ServiceConfig, asked: dict[str, Any], allowed: bool) -> None:
    assert Guard(service).may_act(asked) is allowed
