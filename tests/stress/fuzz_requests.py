"""Requests for the fuzz run: every route, with methods, heads and bodies bent by structure and by bytes.

A request depends on its seed and its number alone, so that one that failed can be sent again by itself.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GENERATING = ("/v1/chat/completions", "/v1/completions")
POSTED = (
    *GENERATING,
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/admin/requests/req-1/cancel",
    "/admin/roles/narrator/load",
    "/admin/roles/narrator/unload",
    "/admin/resume",
)
READ = (
    "/",
    "/v1/models",
    "/v1/models/smollm2-135m",
    "/v1/status",
    "/health",
    "/metrics",
    "/slots",
    "/slots?fail_on_no_slot=1",
    "/admin/requests",
    "/admin/requests?limit=3&finish=stop&q=a",
    "/admin/requests/req-1",
    "/admin/log",
    "/admin/log?after=3&limit=5",
    "/admin/events",
)
DRAIN = "/admin/drain"
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "FOO", "get", "")

BODIES: tuple[dict[str, Any], ...] = (
    {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {"b": 2}]}'}}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "user", "name": "n", "content": "And?"},
        ],
        "max_completion_tokens": 3, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7,
        "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "n": 2, "stop": ["\n\n", "END"],
    },
    {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        "continue_final_message": True, "add_generation_prompt": False, "logprobs": True, "top_logprobs": 3,
        "max_tokens": 2, "chat_template_kwargs": {"enable_thinking": False}, "user": "u", "metadata": {"k": "v"},
    },
    {
        "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "<|im_end|> é 😀"}],
        "max_tokens": 2, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1,
        "logit_bias": {"5": 10, "7": -100}, "ignore_eos": True, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "modalities": ["text"], "best_of": 1,
    },
    {"prompt": "Once upon a time", "max_tokens": 3, "echo": True, "temperature": 0},
    {"prompt": [1, 2, 3, 4], "max_tokens": 2, "logprobs": 2, "stream": True, "suffix": None},
    {"prompt": ["a list of one"], "max_tokens": 0, "echo": True},
    {"prompt": [[5, 6]], "max_tokens": 1, "stop": "x", "n": 3, "seed": -1},
)  # fmt: skip
FIELDS = tuple(sorted({name for body in BODIES for name in body} | {
    "functions", "guided_json", "grammar", "repeat_penalty", "priority", "special_tokens", "prompt_cache_key", "audio",
}))  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """One request as it goes out. `due`: it is whole, so an answer must come. `generates`: an answer may take as long
    as it likes to write. `drains`: it may have told the engine to drain."""

    number: int
    method: str
    path: str
    data: bytes
    due: bool
    generates: bool
    drains: bool


def request(seed: int, number: int, key: str, token: str) -> Sent:
    """The request of that seed and number. `key` is an API key, `token` the admin token; either may be empty."""
    draw = random.Random(f"{seed}/{number}")
    path = _choose(draw, (8, lambda: draw.choice(GENERATING)), (3, lambda: draw.choice(READ)),
                   (2, lambda: draw.choice(POSTED)), (1, lambda: _odd_path(draw)), (0.05, lambda: DRAIN))  # fmt: skip
    right = "GET" if path in READ else "POST"
    method = right if draw.random() < 0.85 else draw.choice(METHODS)
    body = _body(draw) if method == "POST" or draw.random() < 0.1 else b""
    secret = key if path.startswith("/v1") else token
    if draw.random() < 0.1:
        secret = draw.choice(["", "wrong", "é", "x" * 5000, key, token])
    lines = _headers(draw, secret)
    framed, due = _framed(draw, lines, body)
    version = "HTTP/1.1" if draw.random() < 0.95 else draw.choice(["HTTP/1.0", "HTTP/2.0", "HTTP/1.1 ", "HTTQ/1.1", ""])
    head = "\r\n".join([f"{method} {path} {version}", *lines, "", ""]).encode("utf-8", "surrogatepass")
    due = due and method not in ("", "get", "CONNECT") and version == "HTTP/1.1" and " " not in path
    if draw.random() < 0.05:
        head, due = _bend(draw, head), False
    drains = path == DRAIN and method == "POST"
    return Sent(number, method, path, head + framed, due, path in GENERATING, drains)


def _choose(draw: random.Random, *weighted: tuple[float, Callable[[], Any]]) -> Any:
    return draw.choices([make for _, make in weighted], [weight for weight, _ in weighted])[0]()


def _odd_path(draw: random.Random) -> str:
    path = draw.choice((*POSTED, *READ))
    ends = [
        "/",
        "?",
        "?" + "a=1&" * 50,
        "?limit=-1",
        "?limit=" + "9" * 400,
        "?q=%00%ff",
        "/%2e%2e/%00",
        "é",
        "/" * 300,
        "?before=x",
    ]
    ends += [
        "/" + "x" * 3000,
        "%",
        "?limit=1&limit=2",
        "?finish=nope",
        "#x",
        " x",
        "?after=1e3",
        "?request=" + "%F0%9F%98%80" * 9,
    ]
    return path + draw.choice(ends)


def _headers(draw: random.Random, secret: str) -> list[str]:
    lines = ["Host: localhost"]
    if secret:
        lines.append(
            draw.choice(["Authorization: Bearer ", "x-api-key: "]) + secret
            if draw.random() < 0.2
            else f"Authorization: Bearer {secret}"
        )
    odd = [
        "X-Request-Id: mine", "X-Request-Id: " + "y" * 200, "X-Client: 😀\x7f", "X-Client: " + "c" * 9000, "X-Client:",
        "User-Agent: \t", "Origin: http://evil.example", "Origin: http://localhost:3000", "Origin: null", "Origin: http://[",
        "Host: evil.example", "Content-Encoding: gzip", "Content-Encoding: identity", "Content-Type: text/plain",
        "Content-Type: multipart/form-data; boundary=", "Accept-Encoding: gzip", "Expect: 100-continue", "Expect: x",
        "Connection: close", "Connection: upgrade", "Upgrade: h2c", "Upgrade: websocket", "Transfer-Encoding: gzip",
        "X-Forwarded-For: 127.0.0.1", "Forwarded: for=1", "Range: bytes=0-1", "If-None-Match: *", "Cookie: a=\x01",
        "X-Session-Id: " + "s" * 5000, "X-Tandem-Latest: 1", "X-Tandem-Supersedes: req-1",
        "Access-Control-Request-Headers: x\ty",
    ]  # fmt: skip
    return lines + draw.sample(odd, _choose(draw, (7, lambda: 0), (3, lambda: draw.randint(1, 4))))


def _framed(draw: random.Random, lines: list[str], body: bytes) -> tuple[bytes, bool]:
    """The body as it is framed, its headers added to `lines`, and whether the request is whole."""
    odd = any(line.startswith(("Transfer-Encoding", "Cookie", "X-Client: 😀")) for line in lines)
    draws = draw.random()
    if draws < 0.85 or not body:
        lines.append(f"Content-Length: {len(body)}")
        return body, not odd
    if draws < 0.92:
        lines.append("Transfer-Encoding: chunked")
        at = draw.randint(0, len(body))
        chunks = [part for part in (body[:at], body[at:]) if part]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
        return (_bend(draw, framed), False) if draw.random() < 0.3 else (framed, not odd)
    length = draw.choice([0, 1, len(body) // 2, len(body) + 10, 10**12, 10**30, -1, "x"])
    lines.append(f"Content-Length: {length}")
    if draw.random() < 0.3:
        lines.append(f"Content-Length: {len(body)}")
    return body, False


def _body(draw: random.Random) -> bytes:
    value: Any = copy.deepcopy(draw.choice(BODIES))
    for _ in range(_choose(draw, (2, lambda: 0), (6, lambda: 1), (3, lambda: draw.randint(2, 5)))):
        value = _bent(draw, value)
    text = json.dumps(value, ensure_ascii=draw.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    return _bend(draw, data) if draw.random() < 0.25 else data


def _odd(draw: random.Random) -> Any:
    depth = draw.choice([3, 60, 63, 64, 65, 480, 980])
    nested: Any = 1
    for _ in range(depth):
        nested = {"a": nested} if depth % 2 else [nested]
    plain: list[Any] = [
        None, True, False, 0, -1, 1, 1.0, 2.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), 10**30,
        1 << 63, -(1 << 63), "", "x", "none", "auto", "x" * 300, "y" * 2000, "\x00", "\ud800", "😀" * 20,
        "<|im_start|>", "<|im_end|>", "\u202e",
        "".join(map(chr, range(0xE000, 0xF900))), "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF1000)])),
        [], {}, [[]], [None], [0] * 300, ["a"] * 20, {"type": "text"}, {"type": "image_url"},
        {str(i): i for i in range(70)}, {"messages": []}, {"bos_token": "x"},
        {"add_generation_prompt": True}, {"tools": [1]}, {"": 1}, {"\ud83d": 1},
        nested,
    ]  # fmt: skip
    return draw.choice(plain)


def _bent(draw: random.Random, value: Any) -> Any:
    """`value` with one place of it changed."""
    places = list(_places(value))
    if not places or draw.random() < 0.15:
        if isinstance(value, dict):
            return {**value, draw.choice(FIELDS): _odd(draw)}
        return _odd(draw)
    holder, key = draw.choice(places)
    match draw.randrange(6):
        case 0 | 1:
            holder[key] = _odd(draw)
        case 2:
            del holder[key]
        case 3:
            holder[key] = draw.choice([[holder[key]], {"a": holder[key]}, str(holder[key])])
        case 4:
            other, name = draw.choice(places)
            if name in (range(len(other)) if isinstance(other, list) else other):
                holder[key] = copy.deepcopy(other[name])
        case _:
            times = draw.choice([0, 2, 17, 300, 5000])
            holder[key] = holder[key] * times if isinstance(holder[key], list | str) else [holder[key]] * times
    return value


def _places(value: Any) -> Any:
    """Every place inside `value`, as the container and the key or index."""
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for index in range(min(len(value), 50)):
            yield value, index
            yield from _places(value[index])


_TOKENS = (
    b"NaN", b"-Infinity", b"\\ud800", b"\xff", b"\x00", b'"', b"{", b"]", b",", b":", b"\\", b"null", b"1e999", b"\r\n",
    b"9" * 400, b"[" * 900, b'{"a":' * 200, b"\xf0\x9f\x98", b"\xef\xbb\xbf", b"\\u0000", b" " * 100,
)  # fmt: skip


def _bend(draw: random.Random, data: bytes) -> bytes:
    """`data` with some bytes changed, taken out, doubled or put in."""
    bent = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randint(0, len(bent))
        until = min(len(bent), at + draw.randint(1, 12))
        match draw.randrange(5):
            case 0 if at < len(bent):
                bent[at] ^= 1 << draw.randrange(8)
            case 1:
                del bent[at:until]
            case 2:
                bent[at:at] = bent[at:until] * draw.choice([1, 3, 200])
            case 3:
                del bent[draw.randint(len(bent) // 2, len(bent)) :]
            case _:
                bent[at:at] = draw.choice(_TOKENS)
    return bytes(bent)
