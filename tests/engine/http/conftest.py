"""A scripted engine on a real socket, with short silences so that tests of them are quick."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from engine.config import ServiceConfig
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import Served, served

SERVICE = ServiceConfig(body_limit_bytes=1 << 20, heartbeat_s=0.15, headers_after_s=0.3)


@pytest.fixture(scope="session")
def scripted() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="session")
def server(scripted: ScriptedEngine) -> Iterator[Served]:
    with served(scripted, SERVICE) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG_S) as opened:
        yield opened


@pytest.fixture(autouse=True)
def engine(scripted: ScriptedEngine) -> ScriptedEngine:
    """The served engine as new: each test sets its own script and snapshot."""
    scripted.reset()
    return scripted
