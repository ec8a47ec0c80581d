"""One rule counts refusals: `/health`, `/metrics` and the ledger agree after any mix of them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig, ServiceConfig
from engine.core.boot import Parts
from engine.core.loop import Engine
from engine.http.metrics import Metrics
from engine.memory.probe import FixedProbe
from engine.process.keyring import Secret, digest, write_secrets
from engine.process.ledger.reader import Search
from tests.engine.http.talk import CHAT, COMPLETIONS
from tests.engine.http.test_with_engine import Gate
from tests.support.fake_model import FakeRunner, fake_model, reading
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until
from tests.support.served import served

KEY = "a-key-for-the-test"
WINDOW = 256
PROMPT = {"prompt": [3, 1, 4], "max_tokens": 200, "ignore_eos": True, "model": "mine"}


class House:
    """An engine with one slot and one place in its queue, behind an API key, with a ledger, and a clock that is set."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.gate = Gate()
        self.runner = FakeRunner(before=self.gate)
        model = fake_model(self.runner, WINDOW)
        probe = FixedProbe(reading())
        config = EngineConfig(
            model=Path("fake"), model_name="fake", parallel=1, queue_limit=1, max_len=WINDOW, state_dir=folder
        )
        parts = Parts(load=lambda _config, _progress: model, probe=lambda: probe, clock=lambda: self.now)
        self.engine = Engine(config, parts)
        self.client: httpx.Client
        self.metrics: Callable[[], Metrics]

    def post(self, body: Any = None, *, path: str = COMPLETIONS, key: str = KEY) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or PROMPT).encode()
        return self.client.post(path, content=content, headers={"Authorization": f"Bearer {key}", "X-Client": "me"})

    def behind(self, status: list[int]) -> threading.Thread:
        """A request of its own thread, whose status ends in `status`."""
        thread = threading.Thread(target=lambda: status.append(self.post().status_code))
        thread.start()
        return thread

    def queued_after_a_pass(self) -> bool:
        """Let one pass through; whether the request that waits has been taken in and told why it waits."""
        self.gate.allowed.release()
        return [job.waiting is not None for job in self.engine._serving().queue] == [True]

    def waiting(self) -> int:
        return len(self.engine._inbox._waiting)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    write_secrets(tmp_path / "secrets.json", (Secret("phone", digest(KEY.encode()), 0.0),))
    made = House(tmp_path)
    made.engine.start()
    assert made.engine.wait_ready(LONG_S)
    service = ServiceConfig(body_limit_bytes=1 << 16, secrets_file=tmp_path / "secrets.json")
    try:
        with served(made.engine, service) as server, httpx.Client(base_url=server.url, timeout=LONG_S) as client:
            made.client = client
            made.metrics = lambda: server.app._metrics
            yield made
    finally:
        made.gate.open()
        made.engine.close()


def test_the_three_agree_after_a_mix_of_refusals(house: House) -> None:
    refused = [
        (house.post(b"{"), 400),
        (house.post({"prompt": "1", "max_tokens": "many"}), 400),
        (house.post({"messages": []}, path=CHAT), 400),
        (house.post({"prompt": [1] * WINDOW}), 400),
        (house.post({"prompt": "1 2 " * 10_000}), 400),
        (house.post(b" " * (1 << 17)), 413),
    ]
    assert house.post().status_code == 200
    # Who does not get in at the door made no request: no key, and no such route.
    assert house.post(key="wrong").status_code == 401
    assert house.post(path="/v1/nothing").status_code == 404

    statuses: list[int] = []
    house.gate.close()
    running = house.behind(statuses)
    assert house.gate.held.wait(LONG_S)
    waiting = house.behind(statuses)
    assert wait_until(lambda: house.waiting() == 1)
    refused.append((house.post(), 503))
    assert wait_until(house.queued_after_a_pass)
    house.now += 1000.0
    house.gate.open()
    waiting.join(LONG_S)
    running.join(LONG_S)
    assert sorted(statuses) == [200, 429]

    statuses.clear()
    house.gate = house.runner.before = Gate()
    house.gate.close()
    running = house.behind(statuses)
    assert house.gate.held.wait(LONG_S)
    waiting = house.behind(statuses)
    assert wait_until(lambda: house.waiting() == 1)
    house.engine.drain()
    refused.append((house.post(), 503))
    house.gate.open()
    waiting.join(LONG_S)
    running.join(LONG_S)
    assert sorted(statuses) == [200, 503]
    assert [answer.status_code for answer, _ in refused] == [status for _, status in refused]

    expected = {"served": 3, "refused": len(refused) + 1, "timeout": 1, "error": 0, "abandoned": 0, "cancelled": 0}
    assert wait_until(lambda: house.engine.health().parallel.totals.refused == expected["refused"])
    totals = house.engine.health().parallel.totals
    in_health = {name: getattr(totals, field) for name, field in FIELDS.items()}
    assert in_health == expected
    assert in_metrics(house) == expected
    reader = house.engine.ledger
    assert reader is not None
    rows = lambda: reader.page(Search()).rows  # noqa: E731
    assert wait_until(lambda: len(rows()) == sum(expected.values()))
    kept = Counter(str(row.finish) for row in rows())
    assert (kept["refused"], kept["timeout"], kept["stop"] + kept["length"]) == (expected["refused"], 1, 3)
    assert {row.client for row in rows()} == {"phone"}
    assert Counter(row.model for row in rows() if row.finish == "refused")["unknown"] == 4
    assert all(row.reason for row in rows() if row.finish == "refused")


FIELDS = {
    "served": "served",
    "refused": "refused",
    "timeout": "timeouts",
    "error": "errors",
    "abandoned": "abandoned",
    "cancelled": "cancelled",
}


def in_metrics(house: House) -> dict[str, int]:
    lines = house.metrics().text().decode().splitlines()
    found = {name: f'tandem_requests_total{{outcome="{name}"}} ' for name in FIELDS}
    return {
        name: int(float(next(line for line in lines if line.startswith(start)).split()[-1]))
        for name, start in found.items()
    }
