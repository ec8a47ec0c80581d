"""What `/metrics` says of a busy engine: `python -m tests.ops.exposition` prints it, for promtool's lint."""

from __future__ import annotations

import httpx

from engine.config import ServiceConfig
from engine.protocol import decode_health
from tandem.reference import ROOT
from tests.engine.http.talk import CHAT, chat_body
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import served


def exposition() -> str:
    """One scrape, taken after an answer, of an engine whose health is the contract's example."""
    engine = ScriptedEngine()
    engine.snapshot = decode_health((ROOT / "docs" / "contract" / "health.example.json").read_bytes())
    engine.measured.round_ran(2, 0.02, 2)
    with served(engine, ServiceConfig()) as running, httpx.Client(base_url=running.url, timeout=LONG_S) as client:
        assert client.post(CHAT, json=chat_body()).status_code == 200
        return client.get("/metrics").text


if __name__ == "__main__":
    print(exposition(), end="")
