"""`/v1/chat/completions`: what the engine is asked, and the shapes of whole and streamed answers."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine.models.text.interfaces import ChatPrompt
from engine.request import Admitted, Done, Finished, FinishReason, SamplingParams, Text, TokenLogprob
from tests.engine.http.talk import CHAT, chat_body, content_of, error_of, events
from tests.support.patience import LONG_S
from tests.support.scripted_engine import EOS, ScriptedEngine, Ticket


def test_whole_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    response = client.post(CHAT, json=chat_body(seed=7, temperature=0))
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert body["model"] == "m"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    total = len(engine.last.prompt)
    assert body["usage"] == {
        "prompt_tokens": total,
        "completion_tokens": 2,
        "total_tokens": total + 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert engine.last.sampling.seed == 7
    assert engine.last.sampling.greedy


def test_stream_shape(client: httpx.Client) -> None:
    """Role first, `finish_reason` null until the end, usage with no choices, then the end mark."""
    response = client.post(CHAT, json=chat_body(stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert chunks[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *body, usage = chunks[:-1]
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["usage"] is None for chunk in body)
    assert [chunk["choices"][0]["finish_reason"] for chunk in body] == [None, None, None, "stop"]
    assert content_of([*body, "[DONE]"]) == "Hello world"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1


def test_no_usage_unless_asked(client: httpx.Client) -> None:
    chunks = events(client.post(CHAT, json=chat_body(stream=True)).text)
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert all(chunk["choices"] for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_has_its_own_text(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 10))
        for piece in ("a", "b"):
            ticket.put(*(Text(choice, f"{piece}{choice}", 1) for choice in range(3)))
        ticket.put(*(Finished(choice, FinishReason.LENGTH, 2) for choice in (2, 0, 1)), Done(9, 4, 6))

    engine.script = script
    response = client.post(CHAT, json=chat_body(n=3, stream=stream))
    if stream:
        chunks = events(response.text)
        texts = [content_of(chunks, choice) for choice in range(3)]
        ends = [c["index"] for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"] == "length"]
        assert sorted(ends) == [0, 1, 2]
    else:
        choices = response.json()["choices"]
        texts = [choice["message"]["content"] for choice in choices]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert texts == ["a0b0", "a1b1", "a2b2"]
    assert engine.last.n == 3


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_finite_or_null(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    def script(ticket: Ticket) -> None:
        first = TokenLogprob(ord("H"), -0.25, ((ord("H"), -0.25), (ord("J"), -math.inf)))
        ticket.put(Admitted(0, 0, 10), Text(0, "H", 1, (first,)), Text(0, "", 1, (TokenLogprob(EOS, math.nan),)))
        ticket.put(Finished(0, FinishReason.STOP, 2), Done(9, 0, 2))

    engine.script = script
    response = client.post(CHAT, json=chat_body(stream=stream, logprobs=True, top_logprobs=2))
    assert engine.last.logprobs == 2
    if stream:
        parts = [c["logprobs"] for chunk in events(response.text)[:-1] for c in chunk["choices"] if c["logprobs"]]
        content = [entry for part in parts for entry in part["content"]]
    else:
        content = response.json()["choices"][0]["logprobs"]["content"]
    assert content == [
        {
            "token": "H",
            "logprob": -0.25,
            "bytes": [72],
            "top_logprobs": [
                {"token": "H", "logprob": -0.25, "bytes": [72]},
                {"token": "J", "logprob": None, "bytes": [74]},
            ],
        },
        {"token": "</s>", "logprob": None, "bytes": [], "top_logprobs": []},
    ]


def test_logprobs_without_alternatives(client: httpx.Client, engine: ScriptedEngine) -> None:
    client.post(CHAT, json=chat_body(logprobs=True))
    assert engine.last.logprobs == 0
    client.post(CHAT, json=chat_body(logprobs=False, top_logprobs=0))
    assert engine.last.logprobs is None


def test_fields_reach_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 11,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"65": 2, "7": -100},
        "stop": ["\n\n", "END", "END"],
        "max_tokens": 5,
        "max_completion_tokens": 6,
        "ignore_eos": True,
    }
    response = client.post(CHAT, json=chat_body(**fields), headers={"X-Client": "bench", "X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    request = engine.last
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=11,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((7, -100.0), (65, 2.0)),
    )
    assert request.stop == ("\n\n", "END")
    assert request.max_tokens == 6
    assert request.ignore_eos
    assert (request.client, request.model) == ("bench", "m")
    assert request.id.startswith("mine-1-")


def test_absent_fields(client: httpx.Client, engine: ScriptedEngine) -> None:
    client.post(CHAT, json=chat_body(max_tokens=None, stop=None, seed=None), headers={"User-Agent": "opencode/0.3 x"})
    first = engine.last
    client.post(CHAT, json=chat_body())
    assert first.max_tokens is None
    assert first.client == "opencode"
    assert first.sampling.seed != engine.last.sampling.seed, "each request without a seed draws its own"
    drawn = set()
    for _ in range(2):
        client.post(CHAT, json=chat_body(seed=-1))
        drawn.add(engine.last.sampling.seed)
    assert len(drawn) == 2, "a seed of -1 is drawn too"
    assert first.id != engine.last.id


def test_harmless_fields_have_no_effect(client: httpx.Client, engine: ScriptedEngine) -> None:
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "cache_prompt": True,
        "typical_p": 1.0,
        "some_future_field": [1, 2],
    }
    assert client.post(CHAT, json=chat_body(**harmless)).status_code == 200
    assert engine.template.calls[-1]["messages"] == [{"role": "user", "content": "hi"}]


def test_messages_as_the_template_gets_them(client: httpx.Client, engine: ScriptedEngine) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": None}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "t"},
    ]
    response = client.post(CHAT, json=chat_body(messages=messages, chat_template_kwargs={"enable_thinking": False}))
    assert response.status_code == 200
    call = engine.template.calls[-1]
    assert call["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "t"},
    ]
    assert call["extra"] == {"enable_thinking": False}
    assert call["add_generation_prompt"]


@pytest.mark.parametrize(
    ("switches", "rendered"),
    [
        ({"continue_final_message": True}, (False, True)),
        ({"continue_final_message": True, "add_generation_prompt": False}, (False, True)),
        ({"continue_final_message": False}, (True, False)),
        ({"add_generation_prompt": False}, (False, False)),
        ({}, (True, False)),
    ],
)
def test_continuing_the_final_message(
    client: httpx.Client, engine: ScriptedEngine, switches: dict[str, bool], rendered: tuple[bool, bool]
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once upon"}]
    assert client.post(CHAT, json=chat_body(messages=messages, **switches)).status_code == 200
    call = engine.template.calls[-1]
    assert (call["add_generation_prompt"], call["continue_final_message"]) == rendered


def test_conflicting_continuation(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once upon"}]
    both = client.post(CHAT, json=chat_body(messages=messages, continue_final_message=True, add_generation_prompt=True))
    assert error_of(both)["param"] == "add_generation_prompt"
    no_assistant = client.post(CHAT, json=chat_body(continue_final_message=True))
    assert error_of(no_assistant)["param"] == "continue_final_message"
    assert both.status_code == no_assistant.status_code == 400


def test_the_template_refuses_in_its_own_words(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    response = client.post(CHAT, json=chat_body(messages=messages))
    assert response.status_code == 400
    assert error_of(response)["message"] == "messages: system must come first"


def test_a_render_that_takes_long_holds_nobody_up(
    client: httpx.Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()
    render = engine.template.render

    def slow(*arguments: Any, **switches: Any) -> ChatPrompt:
        asked.set()
        assert go.wait(LONG_S)
        return render(*arguments, **switches)

    monkeypatch.setattr(engine.template, "render", slow)
    with ThreadPoolExecutor() as threads:
        chat = threads.submit(client.post, CHAT, json=chat_body())
        try:
            assert asked.wait(LONG_S)
            assert client.get("/health").status_code == 200
            completion = client.post("/v1/completions", content=b'{"prompt": "a"' + b" " * 5000 + b"}")
            assert completion.status_code == 200
        finally:
            go.set()
        assert chat.result().status_code == 200
