"""`docs/contract/`: schemas follow the wire types, examples follow the schemas, live answers follow both."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from jsonschema import Draft202012Validator

from engine.protocol import encode
from tests.engine.http.talk import CHAT, chat_body
from tests.support.contract import FOLDER, TYPES, schema, schema_text
from tests.support.scripted_engine import ScriptedEngine, busy_health


def check(name: str, value: Any) -> None:
    Draft202012Validator(schema(name)).validate(value)


@pytest.mark.parametrize("name", TYPES)
def test_schema_files_are_current(name: str) -> None:
    assert (FOLDER / f"{name}.schema.json").read_text() == schema_text(name), "run python -m tests.support.contract"
    Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", TYPES)
def test_examples_are_valid_and_whole(name: str) -> None:
    """An example fits the schema, decodes to the wire type, and holds no field that the type does not know."""
    body = (FOLDER / f"{name}.example.json").read_bytes()
    check(name, json.loads(body))
    assert json.loads(msgspec.json.encode(msgspec.json.decode(body, type=TYPES[name]))) == json.loads(body)


@pytest.mark.parametrize("name", TYPES)
def test_the_schema_misses_an_absent_field(name: str) -> None:
    """A field that goes missing is noticed: required means required, also for those that may be null."""
    value = json.loads((FOLDER / f"{name}.example.json").read_bytes())
    holder = value[0] if isinstance(value, list) else value
    for key in holder:
        assert not Draft202012Validator(schema(name)).is_valid(
            [{k: v for k, v in holder.items() if k != key}]
            if isinstance(value, list)
            else {k: v for k, v in holder.items() if k != key}
        )


def test_the_health_example_keeps_the_books() -> None:
    health = json.loads((FOLDER / "health.example.json").read_bytes())
    pool, memory = health["kv_pool"], health["memory"]
    assert sum(pool["by_slot"]) == sum(pool["by_kind"].values()) == pool["committed_bytes"]
    assert pool["committed_pages"] * pool["page_bytes"] == pool["committed_bytes"]
    assert sum(memory["split"].values()) == memory["total"] - memory["available"]


@pytest.mark.parametrize("busy", [False, True])
def test_live_answers(client: httpx.Client, engine: ScriptedEngine, busy: bool) -> None:
    if busy:
        engine.snapshot = busy_health()
    check("health", client.get("/health").json())
    assert client.get("/health").content == encode(engine.snapshot)
    check("slots", client.get("/slots").json())
    check("status", client.get("/v1/status").json())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, chat_body(temperature=-1)),
        ("POST", CHAT, None),
        ("GET", CHAT, None),
        ("GET", "/nope", None),
        ("POST", "/v1/responses", {}),
        ("GET", "/v1/models/other", None),
    ],
)
def test_live_refusals(client: httpx.Client, method: str, path: str, body: object) -> None:
    check("error", client.request(method, path, json=body).json())
