"""The application through the owner's socket: the owner's rights, for the owner's processes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.config import ServiceConfig
from engine.process.keyring import Secret, digest, write_secrets
from engine.process.owner_socket import owner_socket
from tests.engine.http.talk import CHAT, chat_body
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import Served, served


@contextmanager
def owned(folder: Path) -> Iterator[tuple[httpx.Client, Served]]:
    """An engine with an API key and an admin token, and a client on its owner's socket."""
    secrets = folder / "secrets.json"
    write_secrets(secrets, (Secret("phone", digest(b"key"), 0.0), Secret("admin", digest(b"token"), 0.0)))
    with (
        owner_socket(folder) as owner,
        served(ScriptedEngine(), ServiceConfig(secrets_file=secrets), owner) as server,
    ):
        assert owner is not None
        way = httpx.HTTPTransport(uds=str(owner.path))
        with httpx.Client(transport=way, base_url=server.url, timeout=LONG_S) as client:
            yield client, server


def test_the_owner_needs_neither_key_nor_token(tmp_path: Path) -> None:
    with owned(tmp_path) as (client, server):
        for path in ("/health", "/metrics", "/slots", "/admin/log"):
            # The second of a kind is answered from its connection.
            assert [len(client.get(path).content) > 0 for _ in range(2)] == [True, True]
        assert client.post(CHAT, json=chat_body()).status_code == 200
        assert client.post("/admin/drain").json()["done"] is True
        assert httpx.post(f"{server.url}/admin/resume").status_code == 403
        # A page that a proxy would pass on is not the owner.
        page = {"Origin": "http://localhost:3000"}
        assert client.post("/admin/resume", headers=page).status_code == 403
        assert client.post("/admin/resume").json()["done"] is True


def test_a_key_through_the_socket_still_names_its_client(tmp_path: Path) -> None:
    with owned(tmp_path) as (client, server):
        engine = server.app._engine
        assert isinstance(engine, ScriptedEngine)
        for headers in ({"Authorization": "Bearer key"}, {"Authorization": "Bearer old"}, {}):
            assert client.post(CHAT, json=chat_body(), headers=headers).status_code == 200
        assert [ticket.request.namespace for ticket in engine.tickets] == ["phone", "", ""]


def test_a_process_of_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.http.connection.is_owner", lambda _peer: False)
    with owned(tmp_path) as (client, _), pytest.raises(httpx.TransportError):
        client.get("/health")
