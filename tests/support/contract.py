"""The contract's machine-readable form: which type stands behind each file, and the schema made from it.

`python -m tests.support.contract` rewrites `docs/contract/*.schema.json` after a wire type has gained a field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.http.errors import ErrorBody
from engine.http.pages import StatusPage
from engine.process.ledger.usage import UsageReport
from engine.protocol import ActionReply, Health, LedgerRow, LogPage, RequestsPage, SlotView
from engine.protocol.reports import BenchReport, PlanReport

FOLDER = Path(__file__).parents[2] / "docs" / "contract"

TYPES: dict[str, Any] = {
    "health": Health,
    "slots": list[SlotView],
    "status": StatusPage,
    "error": ErrorBody,
    "bench": BenchReport,
    "plan": PlanReport,
    "requests": RequestsPage,
    "request": LedgerRow,
    "log": LogPage,
    "action": ActionReply,
    "usage": UsageReport,
}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an answer. Every field is required: null stands for what does not apply, never absence."""
    made: dict[str, Any] = msgspec.json.schema(TYPES[name])
    for definition in made.get("$defs", {}).values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
            for field in definition["properties"].values():
                field.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}


def schema_text(name: str) -> str:
    return json.dumps(schema(name), indent=2) + "\n"


def main() -> None:
    for name in TYPES:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name))


if __name__ == "__main__":
    main()
