"""`/admin`: the ledger, the log and what an operator does, over a real socket; and who may not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest

from engine.process.ledger.reader import LedgerReader
from engine.process.ledger.store import LedgerStore
from engine.protocol import LedgerRow, LogPage, RequestsPage, Role, RoleState, Status
from engine.request import Admitted
from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, chat_body, error_of, events
from tests.engine.http.test_contract import check
from tests.engine.process.ledger.rows import row
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket, idle_health, wait_until
from tests.support.served import Served, served


@pytest.fixture
def path(tmp_path: Path, engine: ScriptedEngine) -> Path:
    """Where the engine's ledger lies, with seven rows."""
    path = tmp_path / "ledger.sqlite"
    with closing(LedgerStore(path)) as store:
        store.append([row(number, client="aider" if number % 2 else "curl") for number in range(7)])
    engine.ledger = LedgerReader(path)
    return path


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    """An engine with an admin and a metrics token."""
    engine = ScriptedEngine()
    with (
        served(engine, replace(SERVICE, admin_token="admin-key", metrics_token="metrics-key")) as running,
        httpx.Client(base_url=running.url, timeout=LONG_S) as client,
    ):
        yield engine, client


@pytest.mark.usefixtures("path")
def test_requests_page_by_page(client: httpx.Client) -> None:
    first = client.get("/admin/requests", params={"limit": 5})
    check("requests", first.json())
    page = msgspec.json.decode(first.content, type=RequestsPage)
    assert ([kept.id for kept in page.rows], page.next, page.total) == (
        [f"req-{n}" for n in (6, 5, 4, 3, 2)],
        "req-2",
        7,
    )
    rest = client.get("/admin/requests", params={"limit": 5, "before": "req-2"}).json()
    assert ([kept["id"] for kept in rest["rows"]], rest["next"]) == (["req-1", "req-0"], None)
    found = client.get("/admin/requests?client=aider&finish=stop&q=REQ-").json()
    assert ([kept["id"] for kept in found["rows"]], found["total"]) == (["req-5", "req-3", "req-1"], 3)


@pytest.mark.usefixtures("path")
def test_one_request(client: httpx.Client) -> None:
    answer = client.get("/admin/requests/req-3")
    check("request", answer.json())
    assert msgspec.json.decode(answer.content, type=LedgerRow) == row(3, client="aider")
    missing = client.get("/admin/requests/req-99")
    assert missing.status_code == 404
    assert "'req-99'" in error_of(missing)["message"]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("query", "param", "words"),
    [
        ("requests?limit=0", "limit", 'from 1 to 500, got "0"'),
        ("requests?limit=501", "limit", 'from 1 to 500, got "501"'),
        ("requests?limit=many", "limit", 'got "many"'),
        ("requests?limit=-1", "limit", 'got "-1"'),
        ("requests?limit=%D9%A3", "limit", "must be an integer"),
        ("requests?before=req-99", "before", "'req-99'"),
        ("requests?before=%2399999999999999999999", "before", "'#99999999999999999999'"),
        ("requests?before=%23%D9%A3", "before", "must be the id of a request"),
        (
            "requests?finish=done",
            "finish",
            "must be one of stop, length, abandoned, cancelled, refused, error, timeout",
        ),
        ("requests?q=" + "x" * 201, "q", "at most 200 characters, got 201"),
        ("requests?colour=red", "colour", "there are limit, before, q, client, finish"),
        ("log?after=-1", "after", "must be an integer from 0"),
        ("log?limit=1001", "limit", "from 1 to 1000"),
        ("log?after=99999999999999999999", "after", "must be an integer from 0"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(client: httpx.Client, query: str, param: str, words: str) -> None:
    answer = client.get(f"/admin/{query}")
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert words in error["message"]


def test_without_a_ledger(client: httpx.Client) -> None:
    for path in ("/admin/requests", "/admin/requests/req-1"):
        answer = client.get(path)
        assert answer.status_code == 409
        assert "TANDEM_LEDGER_DAYS" in error_of(answer)["message"]


def test_a_damaged_ledger_is_said_and_health_answers(client: httpx.Client, engine: ScriptedEngine, path: Path) -> None:
    path.write_text("no database\n" * 200)
    answer = client.get("/admin/requests")
    assert (answer.status_code, error_of(answer)["code"]) == (503, "ledger_unusable")
    assert "move it away" in error_of(answer)["message"]
    assert client.get("/health").status_code == 200


def test_a_long_search_holds_up_no_health(client: httpx.Client, engine: ScriptedEngine, path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Slow(LedgerReader):
        def page(self, search: object) -> RequestsPage:
            asked.set()
            assert answer.wait(LONG_S)
            return RequestsPage(rows=[], next=None, total=0)

    engine.ledger = Slow(path)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(httpx.get(f"{client.base_url}/admin/requests").status_code))
    thread.start()
    assert asked.wait(LONG_S)
    for path_asked in ("/health", "/metrics", "/admin/log"):
        assert client.get(path_asked).status_code == 200
    assert client.post(CHAT, json=chat_body()).status_code == 200
    assert got == []
    answer.set()
    thread.join(LONG_S)
    assert got == [200]


def test_the_log(client: httpx.Client, server: Served) -> None:
    logger = logging.getLogger("tandem.test_admin")
    logger.addHandler(server.ring)
    try:
        logger.warning("one line", extra={"request": "req-5"})
        logger.warning("another")
    finally:
        logger.removeHandler(server.ring)
    answer = client.get("/admin/log", params={"q": "LINE", "limit": 1})
    check("log", answer.json())
    page = msgspec.json.decode(answer.content, type=LogPage)
    assert [(line.text, line.request, line.level) for line in page.lines] == [("one line", "req-5", "warning")]
    later = msgspec.json.decode(client.get("/admin/log", params={"after": page.next}).content, type=LogPage)
    assert later.lines[-1].text == "another"
    assert client.get("/admin/log", params={"request": "req-5"}).json()["lines"][0]["request"] == "req-5"


@pytest.mark.parametrize("stream", [True, False])
def test_cancelling_a_request(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9))
        assert ticket.cancelled.wait(LONG_S)

    engine.script = script
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{client.base_url}{CHAT}", json=chat_body(stream=stream), timeout=LONG_S)
        )
    )
    asking.start()
    assert wait_until(lambda: bool(engine.tickets))
    request_id = engine.last.id
    done = client.post(f"/admin/requests/{request_id}/cancel")
    check("action", done.json())
    assert done.json() == {"done": True, "message": f"{request_id} is cancelled"}
    asking.join(LONG_S)
    (answer,) = answers
    if stream:
        assert answer.status_code == 200
        last = events(answer.text)[-1]
        assert last["error"]["code"] == "cancelled"
        assert last["error"]["message"] == "cancelled by the operator"
    else:
        assert answer.status_code == 410
        assert error_of(answer)["code"] == "cancelled"
    assert wait_until(lambda: client.post(f"/admin/requests/{request_id}/cancel").status_code == 404)


def test_cancelling_by_what_the_client_knows(client: httpx.Client, engine: ScriptedEngine) -> None:
    """The id in an answer's body names one request, a client's own `X-Request-Id` all that run under it."""

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9))
        assert ticket.cancelled.wait(LONG_S)

    engine.script = script
    headers = {"X-Request-Id": "mine"}
    body = chat_body(stream=True)
    asking = []
    while len(asking) < 3:
        asking.append(threading.Thread(target=lambda: client.post(CHAT, json=body, headers=headers)))
        asking[-1].start()
        assert wait_until(lambda: len(engine.tickets) == len(asking))
    first, second, third = engine.tickets
    done = client.post(f"/admin/requests/chatcmpl-{first.request.id}/cancel")
    assert done.json() == {"done": True, "message": f"{first.request.id} is cancelled"}
    assert first.cancelled.wait(LONG_S)
    assert not second.cancelled.is_set()
    asking[0].join(LONG_S)
    done = client.post("/admin/requests/mine/cancel")
    assert done.json() == {"done": True, "message": f"{second.request.id}, {third.request.id} are cancelled"}
    for thread in asking[1:]:
        thread.join(LONG_S)
    assert wait_until(lambda: client.post("/admin/requests/mine/cancel").status_code == 404)


def test_what_does_not_run_cannot_be_cancelled(client: httpx.Client) -> None:
    client.post(CHAT, json=chat_body(), headers={"x-request-id": "req-done"})
    for gone in ("req-none", "req-done"):
        answer = client.post(f"/admin/requests/{gone}/cancel")
        assert answer.status_code == 404
        assert f"no request {gone!r} runs or waits" in error_of(answer)["message"]
    assert client.get("/admin/requests/req-1/cancel").status_code == 405


def test_roles_say_what_was_decided(client: httpx.Client, engine: ScriptedEngine) -> None:
    role = Role(
        name="shadow reader",
        kind="shadow",
        state=RoleState.PLANNED,
        claim_bytes=1,
        measured_bytes=None,
        reason="roles do not run yet; the plan would refuse it",
        since_s=1.0,
        reloads=0,
        to_fit="1 GiB more for floor and margin: fewer slots",
    )
    engine.snapshot = msgspec.structs.replace(idle_health(), roles=[role])
    for verb in ("load", "unload"):
        answer = client.post(f"/admin/roles/shadow%20reader/{verb}")
        assert answer.status_code == 409
        message = error_of(answer)["message"]
        assert message.startswith(f"shadow reader cannot be {verb}ed: roles do not run yet; the plan would refuse it")
        assert "fewer slots" in message
    assert client.post("/admin/roles/narrator/load").status_code == 404
    assert client.post("/admin/roles/narrator/polish").status_code == 404


def test_draining(client: httpx.Client, engine: ScriptedEngine) -> None:
    answer = client.post("/admin/drain")
    check("action", answer.json())
    assert answer.json()["done"] is True
    assert engine.draining
    assert engine.snapshot.status is Status.DRAINING
    assert client.post("/admin/drain").json() == {"done": False, "message": "the engine drains already"}


def test_a_drain_is_taken_back(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.post("/admin/resume").json() == {"done": False, "message": "the engine does not drain"}
    client.post("/admin/drain")
    answer = client.post("/admin/resume")
    check("action", answer.json())
    assert answer.json()["done"] is True
    assert not engine.draining


def test_the_drain_of_a_service_that_ends_is_for_good(
    client: httpx.Client, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.app.admin, "ending", True)
    answer = client.post("/admin/resume")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_be_done")


READS = ("/admin/requests", "/admin/requests/req-1", "/admin/log")
ACTIONS = (
    "/admin/requests/req-1/cancel",
    "/admin/roles/x/load",
    "/admin/roles/x/unload",
    "/admin/drain",
    "/admin/resume",
)
FORWARDED = {"x-forwarded-for": "203.0.113.9"}


@pytest.mark.usefixtures("path")
def test_who_may_not_without_tokens(client: httpx.Client, engine: ScriptedEngine) -> None:
    for path in READS:
        assert client.get(path, headers=FORWARDED).status_code == 403
        assert client.get(path, headers={"host": "evil.example"}).status_code == 403
        assert client.get(path, headers={"origin": "https://evil.example"}).status_code == 403
    for path in ACTIONS:
        for headers in (
            FORWARDED,
            {"host": "evil.example"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost:3000"},
        ):
            assert client.post(path, headers=headers).status_code == 403, (path, headers)
    assert not engine.draining


def test_who_may_act_with_tokens(guarded: tuple[ScriptedEngine, httpx.Client]) -> None:
    engine, client = guarded
    for path in ACTIONS:
        for headers in (
            {},
            FORWARDED,
            {"authorization": "Bearer metrics-key"},
            {"authorization": "Bearer admin-kez"},
            {"authorization": "Basic admin-key"},
        ):
            assert client.post(path, headers=headers).status_code == 403, (path, headers)
    assert not engine.draining
    keyed = {"authorization": "Bearer admin-key"}
    assert client.get("/admin/log", headers=FORWARDED).status_code == 403
    assert client.get("/admin/log", headers=FORWARDED | {"authorization": "Bearer metrics-key"}).status_code == 200
    assert client.post("/admin/requests/req-1/cancel", headers=keyed | FORWARDED).status_code == 404
    assert client.post("/admin/drain", headers=keyed | {"origin": "http://localhost:3000"}).status_code == 200
    assert engine.draining
