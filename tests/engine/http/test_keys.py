"""API keys over HTTP: who is let in, what the refusal looks like, and what a label becomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest

from engine.http.guard import Guard
from engine.process.keyring import Secret, digest, write_secrets
from engine.request import RequestError
from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, chat_body, error_of
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import Served, served

PHONE, LAPTOP, ADMIN, METRICS = "key-of-the-phone", "key-of-the-laptop", "the-admin-token", "the-metrics-token"


def keep(path: Path, **secrets: str) -> None:
    write_secrets(path, tuple(Secret(label, digest(text.encode()), 0.0) for label, text in secrets.items()))


@pytest.fixture(scope="module")
def secrets_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets") / "secrets.json"


@pytest.fixture(scope="module")
def keyed_server(scripted: ScriptedEngine, secrets_file: Path) -> Iterator[Served]:
    with served(scripted, replace(SERVICE, secrets_file=secrets_file)) as running:
        yield running


@pytest.fixture
def keyed(keyed_server: Served, secrets_file: Path) -> Iterator[httpx.Client]:
    """A client of an engine with two keys and both tokens; it sends none of them by itself."""
    keep(secrets_file, phone=PHONE, laptop=LAPTOP, admin=ADMIN, metrics=METRICS)
    with httpx.Client(base_url=keyed_server.url, timeout=LONG_S) as opened:
        yield opened


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {PHONE}"},
        {"Authorization": f"bearer {PHONE}"},
        {"X-Api-Key": PHONE},
        {"Authorization": "Bearer placeholder", "X-Api-Key": PHONE},
    ],
)
def test_a_key_lets_in_and_its_label_is_the_client(
    keyed: httpx.Client, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    assert keyed.post(CHAT, json=chat_body(), headers=headers | {"X-Client": "someone-else"}).status_code == 200
    request = engine.tickets[-1].request
    assert (request.client, request.namespace) == ("phone", "phone")


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, 'Bearer realm="tandem"'),
        ({"Authorization": "Basic cGhvbmU6eA=="}, 'Bearer realm="tandem"'),
        ({"Authorization": "Bearer"}, 'Bearer realm="tandem"'),
        ({"Authorization": "Bearer wrong"}, 'Bearer realm="tandem", error="invalid_token"'),
        ({"Authorization": f"Bearer {PHONE}x"}, 'Bearer realm="tandem", error="invalid_token"'),
        ({"Authorization": f"Bearer {ADMIN}"}, 'Bearer realm="tandem", error="invalid_token"'),
        ({"X-Api-Key": "wrong"}, 'Bearer realm="tandem", error="invalid_token"'),
        ({"X-Api-Key": "schl\u00fcssel".encode()}, 'Bearer realm="tandem", error="invalid_token"'),
    ],
)
def test_without_a_key_nothing_of_v1_answers(
    keyed: httpx.Client, engine: ScriptedEngine, headers: dict[str, str], challenge: str
) -> None:
    for method, path in (("POST", CHAT), ("POST", "/v1/messages"), ("GET", "/v1/models"), ("GET", "/v1/nowhere")):
        response = keyed.request(method, path, headers=headers)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == challenge
        error = error_of(response)
        assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, "invalid_api_key")
        assert "x-request-id" in response.headers
        assert not any(secret in error["message"] for secret in ("wrong", PHONE, ADMIN))
    assert engine.tickets == []


def test_a_refused_body_is_not_read(keyed: httpx.Client) -> None:
    """A stranger's megabytes are refused by their head."""
    assert keyed.post(CHAT, content=b"{" * (2 << 20)).status_code == 401


def test_a_preflight_needs_no_key(keyed: httpx.Client) -> None:
    asks = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    allowed = keyed.options(CHAT, headers=asks)
    assert allowed.status_code == 204
    assert "POST" in allowed.headers["access-control-allow-methods"]
    refused = keyed.post(CHAT, json=chat_body(), headers={"Origin": "http://localhost:3000"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_health_is_public_and_its_body_wants_a_token(keyed: httpx.Client) -> None:
    """Also from this machine: which of its clients a proxy stands behind cannot be told."""
    for headers, sees in (
        ({}, False),
        ({"Authorization": f"Bearer {PHONE}"}, False),
        ({"Authorization": f"Bearer {METRICS}"}, True),
        ({"Authorization": f"Bearer {ADMIN}"}, True),
    ):
        health = keyed.get("/health", headers=headers)
        assert (health.status_code, bool(health.content)) == (200, sees)
        assert keyed.get("/metrics", headers=headers).status_code == (200 if sees else 403)


def test_a_rotation_holds_from_the_next_request(keyed: httpx.Client, secrets_file: Path) -> None:
    def status(key: str) -> int:
        return keyed.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    assert status(PHONE) == 200
    keep(secrets_file, phone="another-key-of-the-phone")
    assert [status(PHONE), status(LAPTOP), status("another-key-of-the-phone")] == [401, 401, 200]
    keep(secrets_file)
    assert status(PHONE) == 200, "no keys, on loopback: nobody needs one"


def test_an_openai_client_hears_what_it_knows(keyed: httpx.Client, keyed_server: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.models.list()
    assert refused.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{keyed_server.url}/v1", api_key=PHONE, max_retries=0) as client:
        assert client.models.list().data


def test_other_machines_stay_out_when_the_last_key_goes(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    keep(path)
    guard = Guard(replace(SERVICE, host="0.0.0.0", secrets_file=path))
    from engine.http.wire import CONTEXT_KEY, Context

    scope = {"path": CHAT, "headers": [], CONTEXT_KEY: Context("req-1", [])}
    with pytest.raises(RequestError) as refused:
        guard.check_key(scope)
    assert refused.value.status == 401
