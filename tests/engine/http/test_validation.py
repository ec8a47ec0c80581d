"""Bodies that cannot be served: each a 4xx that names the field, the limit and the value."""

from __future__ import annotations

import socket

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.http.conftest import SERVICE
from tests.engine.http.talk import CHAT, COMPLETIONS, chat_body, error_of
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.served import Served

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -0.1}, "temperature", "at least 0, got -0.1"),
        ({"temperature": "hot"}, "temperature", 'must be a number, got "hot"'),
        ({"temperature": True}, "temperature", "must be a number, got true"),
        ({"temperature": 10**400}, "temperature", "finite"),
        ({"top_p": 0}, "top_p", "over 0 and at most 1, got 0"),
        ({"top_p": 1.01}, "top_p", "at most 1"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"min_p": 1.5}, "min_p", "at most 1"),
        ({"n": 0}, "n", "at least 1 and at most 8, got 0"),
        ({"n": 9}, "n", "at most 8, got 9"),
        ({"n": 1.5}, "n", "must be an integer"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens", "got -1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1, got 0"),
        ({"stop": ""}, "stop", "not empty"),
        ({"stop": ["a", ""]}, "stop[1]", "not empty"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 strings, got 17"),
        ({"stop": "x" * 1025}, "stop", "at most 1024 characters, got 1025"),
        ({"stop": 5}, "stop", "must be a string"),
        ({"logit_bias": {"258": 1}}, "logit_bias.258", "at most 257, got 258"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "at most 100, got 101"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object"),
        ({"seed": 1 << 63}, "seed", "at most 9223372036854775807"),
        ({"seed": "x"}, "seed", "must be an integer"),
        ({"presence_penalty": 2.5}, "presence_penalty", "at most 2, got 2.5"),
        ({"frequency_penalty": -3}, "frequency_penalty", "at least -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "at least 0.01 and at most 100, got 0"),
        ({"repeat_penalty": -1}, "repeat_penalty", "at least 0.01"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": 3}, "stream_options", "must be an object"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
        ({"model": 5}, "model", "must be a string"),
        ({"model": "m" * 257}, "model", "at most 256 characters, got 257"),
        ({"user": "u" * 513}, "user", "at most 512 characters, got 513"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "at most 64 characters, got 65"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "at most 512 characters, got 513"),
        ({"metadata": {f"k{i}": 1 for i in range(17)}}, "metadata", "at most 16 entries, got 17"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024 token ids, got 1025"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1", 'must be a number, got "x"'),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias", "token ids"),
        ({"n": 2.5, "top_k": 3.0}, "n", "must be an integer, got 2.5"),
        ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages", "at most 4096 messages, got 4097"),
        (
            {"messages": [{"content": "x"}]},
            "messages[0].role",
            "one of assistant, developer, system, tool, user",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "n" * 257}]}, "messages[0].name", "at most 256"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}]},
            "messages[0].content",
            "at most 1024 parts, got 1025",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 129}]},
            "messages[0].tool_calls",
            "at most 128 calls, got 129",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "i" * 257, "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].id",
            "at most 256 characters, got 257",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 4}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "must be a string or an object, got 4",
        ),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": None}, "messages", "at least one"),
        ({"messages": "hi"}, "messages", "must be an array"),
        ({"messages": ["hi"]}, "messages[0]", "must be an object"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", 'got "wizard"'),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "got null"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "got null"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "got null"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type", 'must be "text"'),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages[0].content[0].type",
            "images are not supported yet",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": None}]}]},
            "messages[0].tool_calls[0].function.name",
            "must be a string",
        ),
        ({"tools": [{"type": "function"}]}, "tools", "not supported yet"),
        ({"tool_choice": "required"}, "tool_choice", "not supported yet"),
        ({"functions": [{}]}, "functions", "not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
        ({"modalities": ["text", "audio"]}, "modalities[1]", "not supported yet"),
        ({"grammar": "root ::= x"}, "grammar", "not supported yet"),
        ({"guided_json": {"type": "object"}}, "guided_json", "not supported yet"),
        ({"chat_template_kwargs": 4}, "chat_template_kwargs", "must be an object"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "engine itself"),
        (
            {"chat_template_kwargs": {"add_generation_prompt": 1}},
            "chat_template_kwargs.add_generation_prompt",
            "itself",
        ),
        ({"chat_template_kwargs": {"bos_token": "<s>"}}, "chat_template_kwargs.bos_token", "engine itself"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "engine itself"),
        (
            {"chat_template_kwargs": {str(i): i for i in range(65)}},
            "chat_template_kwargs",
            "at most 64 entries, got 65",
        ),
    ],
)
def test_chat_fields_refused_by_name(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, object], param: str, words: str
) -> None:
    response = client.post(CHAT, json=chat_body(**fields))
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert param in error["message"]
    assert engine.tickets == []


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "must be a JSON object, not an array"),
        (b'"x"', None, "not a string"),
        (b'{"temperature":NaN,' + MESSAGES + b"}", "temperature", "finite number, got nan"),
        (b'{"temperature":-Infinity,' + MESSAGES + b"}", "temperature", "finite number, got -inf"),
        (b'{"temperature":1e999,' + MESSAGES + b"}", "temperature", "finite"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "messages[0].content", "surrogate"),
        (b'{"messages":[{"role":"user","content":"\\udc00x"}]}', "messages[0].content", "surrogate"),
        (b'{"stop":["ok","\\udfff"],' + MESSAGES + b"}", "stop[1]", "surrogate"),
        (b'{"metadata":{"\\ud800":1},' + MESSAGES + b"}", "metadata", "surrogate"),
        (b'{"messages":"\xff"}', None, "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"}", None, "nested too deeply: 100,001 levels, at most 64"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", None, "nested too deeply: 65 levels"),
        (b'{"messages":"[{[{","a":' + b'{"a":' * 500 + b"1" + b"}" * 501, None, "nested too deeply: 501 levels"),
        (b'{"a":[' + b"1," * 70_000 + b"1]}", None, "holds 70,003 values, at most 67,584"),
        (b'{"n":"x","n":0,' + MESSAGES + b"}", "n", "at least 1 and at most 8, got 0"),
        (b'{"logit_bias":{"5":NaN},' + MESSAGES + b"}", "logit_bias.5", "finite number, got nan"),
        (b'{"seed":' + b"9" * 5000 + b"," + MESSAGES + b"}", None, "not valid JSON"),
    ],
)
def test_bodies_that_are_no_request(client: httpx.Client, body: bytes, param: str | None, words: str) -> None:
    response = client.post(CHAT, content=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert words in error_of(response)["message"]
    assert client.post(CHAT, json=chat_body()).status_code == 200


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-300])
def test_tiny_temperature_is_greedy(client: httpx.Client, engine: ScriptedEngine, temperature: float) -> None:
    assert client.post(CHAT, json=chat_body(temperature=temperature)).status_code == 200
    assert engine.last.sampling.greedy


def test_body_over_the_limit(client: httpx.Client, engine: ScriptedEngine) -> None:
    limit = SERVICE.body_limit_bytes
    declared = client.post(CHAT, content=b"x" * (limit + 1))
    assert declared.status_code == 413
    assert f"{limit:,}" in error_of(declared)["message"]
    streamed = client.post(CHAT, content=(b"x" * 65536 for _ in range(40)))
    assert streamed.status_code == 413
    assert client.post(CHAT, json=chat_body()).status_code == 200


def test_a_head_that_does_not_end(server: Served, client: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG_S) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        with pytest.raises(ConnectionError):
            opened.sendall(b"a" * (64 << 20))
    assert client.post(CHAT, json=chat_body()).status_code == 200


def test_a_large_body_within_the_limit(client: httpx.Client, engine: ScriptedEngine) -> None:
    """Large bodies are parsed aside; the answer and the refusal are the same as for small ones."""
    assert client.post(CHAT, json=chat_body(note="u" * 100_000)).status_code == 200
    refused = client.post(CHAT, json=chat_body(note="u" * 100_000, n=0))
    assert error_of(refused)["param"] == "n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "messages", "prompt", "model", "temperature", "top_p", "top_k", "min_p", "n", "max_tokens", "stop", "stream",
    "logit_bias", "seed", "presence_penalty", "repetition_penalty", "logprobs", "top_logprobs", "stream_options",
    "tools", "tool_choice", "response_format", "echo", "suffix", "best_of", "modalities", "chat_template_kwargs",
    "continue_final_message", "add_generation_prompt", "ignore_eos", "max_completion_tokens", "user",
]  # fmt: skip
PARTS = st.fixed_dictionaries({}, optional={"type": st.sampled_from(["text", "image_url", "x"]) | JSON, "text": JSON})
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool"]) | JSON,
        "content": st.text(max_size=8) | st.lists(PARTS, max_size=2) | JSON,
        "tool_calls": JSON,
    },
)
BODIES = st.builds(
    lambda base, extra: {**base, **extra},
    st.fixed_dictionaries({"messages": st.lists(MESSAGE, max_size=3) | JSON, "prompt": JSON}),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
)

FIXTURES = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
"""The autouse reset runs once for all examples, which is what these tests want."""


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=FIXTURES)
@given(body=BODIES, route=st.sampled_from([CHAT, COMPLETIONS]))
def test_no_body_is_a_server_error(client: httpx.Client, body: dict[str, object], route: str) -> None:
    response = client.post(route, json=body)
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        error_of(response)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=FIXTURES)
@given(body=st.binary(max_size=40) | st.text(alphabet='{}[]":,\\ud8091eE+-.ntrfals ', max_size=40).map(str.encode))
def test_no_bytes_are_a_server_error(client: httpx.Client, body: bytes) -> None:
    response = client.post(CHAT, content=body)
    assert response.status_code == 400
    error_of(response)
