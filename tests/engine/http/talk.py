"""Short ways to ask and to read a stream, for the tests of the HTTP layer."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def events(text: str) -> list[Any]:
    """The data of a whole stream, in order: decoded JSON, and the last "[DONE]" as it stands."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def comments(text: str) -> list[str]:
    return [line.removeprefix(": ") for line in text.splitlines() if line.startswith(":")]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a refusal, after checking its shape."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "x-request-id" in response.headers
    error: dict[str, Any] = body["error"]
    return error


def content_of(chunks: list[Any], choice: int = 0) -> str:
    pieces = (c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == choice)
    return "".join((piece.get("delta") or {}).get("content", piece.get("text", "")) for piece in pieces)
