"""`/metrics`: every family is documented, follows the conventions, and says what the snapshot and the meters say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from engine.protocol import Health, LadderLevel, LedgerState, Role, RoleState
from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, chat_body
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, busy_health
from tests.support.served import served

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
OTHERS = ("process_",)


@pytest.fixture(scope="module")
def aliased() -> Iterator[tuple[ScriptedEngine, httpx.Client]]:
    engine = ScriptedEngine(name="scripted")
    with (
        served(engine, replace(SERVICE, vllm_metrics=True)) as running,
        httpx.Client(base_url=running.url, timeout=LONG_S) as client,
    ):
        yield engine, client


def families(client: httpx.Client) -> dict[str, Metric]:
    """By the name that a query uses: with `_total` where it is a counter."""
    text = client.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created") and not family.name.startswith(OTHERS):
            found[family.name + ("_total" if family.type == "counter" else "")] = family
    return found


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    family = families[name.removesuffix("_count").removesuffix("_sum")]
    (found,) = [s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items()]
    return float(found)


def full_health() -> Health:
    """A snapshot in which nothing is missing."""
    health = busy_health()
    rung = LadderLevel(
        level="idle side conversations",
        held_bytes=11,
        reclaims=3,
        freed_bytes=44,
        last_age_s=1.0,
        last_reason="r",
    )
    role = Role(
        name="narrator",
        kind="narrator",
        state=RoleState.PLANNED,
        claim_bytes=1,
        measured_bytes=None,
        reason="r",
        since_s=1.0,
        reloads=0,
    )
    return msgspec.structs.replace(
        health,
        last_progress_age_s=0.5,
        memory=msgspec.structs.replace(health.memory, ladder=[rung]),
        roles=[role],
        ledger=LedgerState(enabled=True, written=7, dropped=2, defect="the disk is full"),
    )


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels by name, out of the two tables."""
    rows = [line.strip("| \n").split("|") for line in DOCUMENT.read_text().splitlines() if re.match(r"\| `\w", line)]
    return {
        cells[0].strip(" `"): (cells[1].strip(), set(re.findall(r"\w+", cells[2])) if len(cells) > 3 else set())
        for cells in rows
        if "*" not in cells[0]
    }


def test_the_document_lists_exactly_what_is_shown(aliased: tuple[ScriptedEngine, httpx.Client]) -> None:
    engine, client = aliased
    engine.snapshot = full_health()
    engine.measured.round_ran(2, 0.012, 2)
    client.post(CHAT, json=chat_body())
    shown = families(client)
    known = documented()
    assert set(shown) == set(known)
    for name, family in shown.items():
        kind, labels = known[name]
        assert family.type == kind, name
        if name.startswith("tandem_"):
            assert {label for sample in family.samples for label in sample.labels} - {"le"} == labels, name
        else:
            assert all("model_name" in sample.labels for sample in family.samples), name


def test_names_carry_their_base_units(aliased: tuple[ScriptedEngine, httpx.Client]) -> None:
    _, client = aliased
    for name, family in families(client).items():
        assert not re.search(r"_(ms|millis\w*|minutes|kb|mb|gb|mib|gib|percent)(_|$)", name)
        if family.type == "histogram":
            assert name.endswith("_seconds")
        assert family.documentation


def test_they_say_what_the_snapshot_and_the_meters_say(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.snapshot = full_health()
    for seconds in (0.004, 0.011, 0.011):
        engine.measured.round_ran(3, seconds, 3)
    engine.measured.gaps.observe(0.02)
    engine.measured.queue.observe(7.0)
    shown = families(client)
    assert not [name for name in shown if name.startswith("vllm")]
    assert value(shown, "tandem_round_seconds_count", slots="3") == 3
    assert value(shown, "tandem_round_seconds_sum", slots="3") == pytest.approx(0.026)
    buckets = {s.labels["le"]: s.value for s in shown["tandem_round_seconds"].samples if s.name.endswith("_bucket")}
    assert (buckets["0.002"], buckets["0.005"], buckets["0.01"], buckets["0.015"], buckets["+Inf"]) == (0, 1, 1, 3, 3)
    assert value(shown, "tandem_inter_token_seconds_sum") == pytest.approx(0.02)
    assert value(shown, "tandem_queue_seconds_sum") == 7.0
    assert value(shown, "tandem_queue_requests", state="waiting_slot") == 1
    assert value(shown, "tandem_queue_requests", state="waiting_memory") == 0
    assert value(shown, "tandem_queue_oldest_seconds") == 0.2
    assert value(shown, "tandem_memory_used_bytes", part="weights") == 1000
    assert value(shown, "tandem_ladder_freed_bytes_total", level="idle side conversations") == 44
    assert value(shown, "tandem_role_state", role="narrator", state="planned") == 1
    assert (value(shown, "tandem_ledger_rows_total"), value(shown, "tandem_ledger_dropped_rows_total")) == (7, 2)
    assert value(shown, "tandem_ledger_failing") == 1


def test_vllms_names_say_the_same(aliased: tuple[ScriptedEngine, httpx.Client]) -> None:
    engine, client = aliased
    health = busy_health()
    lanes = [msgspec.structs.replace(lane, committed_bytes=1000) for lane in health.lanes]
    pool = msgspec.structs.replace(health.kv_pool, committed_bytes=2000, by_slot=[1000, 1000])
    engine.snapshot = msgspec.structs.replace(health, lanes=lanes, kv_pool=pool)
    before = families(client)
    answer = client.post(CHAT, json=chat_body()).json()
    after = families(client)
    for name in ("prompt_tokens_total", "request_success_total", "e2e_request_latency_seconds_count"):
        assert value(after, f"vllm:{name}") - value(before, f"vllm:{name}") == (
            answer["usage"]["prompt_tokens"] if name == "prompt_tokens_total" else 1
        )
    assert value(after, "vllm:request_success_total", finished_reason="stop") >= 1
    assert value(after, "vllm:num_requests_running") == value(after, "tandem_requests_running") == 2
    # 2,000 bytes are held, and 7,800 lie above the floor.
    assert value(after, "vllm:kv_cache_usage_perc", model_name="scripted") == pytest.approx(2000 / 9800)
