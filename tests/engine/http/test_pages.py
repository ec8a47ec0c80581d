"""The routes that are read: models, status, slots, health, metrics, and routes that are not there."""

from __future__ import annotations

import threading

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.protocol import Loading, Status
from engine.request import Admitted
from tests.engine.http.talk import CHAT, chat_body, error_of
from tests.support.patience import LONG_S
from tests.support.scripted_engine import MAX_LEN, ScriptedEngine, Ticket, busy_health, wait_until
from tests.support.served import Served


def samples(text: str) -> dict[str, float]:
    """Every sample of a scrape as `name{label=value,…}`."""
    return {
        sample.name + "".join(f"|{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_models(client: httpx.Client) -> None:
    card = {
        "id": "scripted",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tandem",
        "max_model_len": MAX_LEN,
    }
    assert client.get("/v1/models").json() == {"object": "list", "data": [card]}
    assert client.get("/v1/models/scripted").json() == card
    missing = client.get("/v1/models/a/b")
    assert missing.status_code == 404
    assert error_of(missing)["code"] == "model_not_found"


def test_health_by_status(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/health").status_code == 200
    for status in (Status.LOADING, Status.DRAINING, Status.STALLED):
        engine.snapshot = msgspec.structs.replace(engine.snapshot, status=status)
        response = client.get("/health")
        assert response.status_code == 503
        assert response.json()["status"] == status
        assert "retry-after" in response.headers
    assert client.head("/health").status_code == 503
    assert client.head("/health").content == b""


def test_while_loading(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.model = None
    loading = Loading(stage="weights", done_bytes=5, total_bytes=10, eta_s=1.0)
    engine.snapshot = msgspec.structs.replace(engine.snapshot, status=Status.LOADING, model=None, loading=loading)
    for response in (client.post(CHAT, json=chat_body()), client.get("/v1/models")):
        assert response.status_code == 503
        assert error_of(response)["code"] == "loading"
        assert int(response.headers["retry-after"]) > 0
    assert client.get("/health").json()["loading"]["done_bytes"] == 5
    assert client.get("/v1/status").json()["model"] is None
    assert client.get("/metrics").status_code == 200


def test_slots(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200
    engine.snapshot = busy_health()
    response = client.get("/slots")
    assert response.status_code == 200
    assert response.json()[1] == {
        "id": 1,
        "state": "decoding",
        "is_processing": True,
        "n_ctx": MAX_LEN,
        "n_past": 34,
        "client": "opencode",
        "reason": None,
    }
    assert client.get("/slots?fail_on_no_slot=1").status_code == 503
    assert client.get("/slots?fail_on_no_slot=0").status_code == 200


def test_status(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.snapshot = busy_health()
    assert client.get("/v1/status").json()["concurrency"] == {"serving": 2, "running": 2, "waiting": 1}


def test_metrics(client: httpx.Client, engine: ScriptedEngine) -> None:
    before = samples(client.get("/metrics").text)
    engine.script = lambda ticket: (ticket.put(Admitted(0, 3, 9)), ticket.finish("a", "b", cached=3))[0]
    client.post(CHAT, json=chat_body(stream=True))
    client.post(CHAT, json=chat_body(n=0))
    engine.snapshot = busy_health()
    after = samples(client.get("/metrics").text)
    prompt = len(engine.last.prompt)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert gained("tandem_prompt_tokens_total") == prompt
    assert gained("tandem_cached_tokens_total") == 3
    assert gained("tandem_generated_tokens_total") == 2
    assert gained("tandem_time_to_first_token_seconds_count") == 1
    assert gained("tandem_request_duration_seconds_count") == 1
    assert gained(f"tandem_http_responses_total|route={CHAT}|status=200") == 1
    assert gained(f"tandem_http_responses_total|route={CHAT}|status=400") == 1
    assert after["tandem_requests_running"] == 2
    assert after["tandem_requests_waiting"] == 1
    assert after["tandem_requests_total|outcome=served"] == 5
    assert after["tandem_requests_total|outcome=abandoned"] == 1
    assert after["tandem_rounds_total|slots=2"] == 7
    assert after["tandem_status|status=ok"] == 1
    assert after["tandem_kv_committed_bytes|slot=1"] == 0
    assert after["tandem_memory_available_bytes"] == 8_800


def test_paths_do_not_become_labels(client: httpx.Client) -> None:
    client.get("/made/up/path")
    client.get("/v1/models/made-up-model")
    assert "made" not in client.get("/metrics").text


def test_pages_do_not_wait_for_the_engine(client: httpx.Client, server: Served, engine: ScriptedEngine) -> None:
    """While a request is held in the middle of its read, everything that is read still answers."""
    go = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9))
        go.wait(LONG_S)
        ticket.finish("x")

    engine.script = script
    asking = threading.Thread(target=httpx.post, args=(server.url + CHAT,), kwargs={"json": chat_body()})
    asking.start()
    assert wait_until(lambda: len(engine.tickets) == 1)
    for path in ("/health", "/metrics", "/slots", "/v1/status", "/v1/models"):
        assert client.get(path).status_code == 200
    assert server.app.streams.count == 1
    go.set()
    asking.join(LONG_S)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/responses", 501),
        ("POST", "/v1/messages", 501),
        ("POST", "/v1/messages/count_tokens", 501),
    ],
)
def test_routes_that_are_not_there(client: httpx.Client, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    error = error_of(response)
    assert path in error["message"]
    assert ("allow" in response.headers) == (status == 405)
