"""Shows lines of an engine's log as text for a person or as JSON objects for a script, however they were written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

DRESS = ("event", "level", "logger", "timestamp")


def as_json(line: str) -> str:
    """The line as one JSON object; one that is none becomes `{"text": …}`."""
    text = line.rstrip("\n")
    return text if _decoded(text) is not None else msgspec.json.encode({"text": text}).decode()


def as_text(line: str) -> str:
    """The line in words: time of day here, level where it matters, what happened, its fields, a traceback below."""
    text = line.rstrip("\n")
    fields = _decoded(text)
    if fields is None or "event" not in fields:
        return text
    level = fields.get("level")
    words = [_clock(fields.get("timestamp")), f"[{level}]" if level not in (None, "info") else "", str(fields["event"])]
    words += [f"{name}={_value(value)}" for name, value in fields.items() if name not in (*DRESS, "exception")]
    below = f"\n{fields['exception']}" if "exception" in fields else ""
    return " ".join(word for word in words if word) + below


def _decoded(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def _clock(stamp: object) -> str:
    try:
        return f"{datetime.fromisoformat(str(stamp)).astimezone():%H:%M:%S}"
    except ValueError:
        return ""


def _value(value: object) -> str:
    if isinstance(value, str):
        return msgspec.json.encode(value).decode() if " " in value or not value else value
    return msgspec.json.encode(value).decode()
