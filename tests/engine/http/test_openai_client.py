"""The official `openai` client against the server: whole, streamed, refused, raw completions, models."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import openai
import pytest

from engine.request import Admitted, Failed, RequestError, Text, TokenLogprob
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket
from tests.support.served import Served


@pytest.fixture
def official(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as opened:
        yield opened


HI: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def test_chat(official: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = official.chat.completions.create(model="any", messages=HI, max_tokens=5, seed=1)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert engine.last.client == "OpenAI"


def test_chat_streamed(official: openai.OpenAI) -> None:
    stream = official.chat.completions.create(
        model="any", messages=HI, stream=True, stream_options={"include_usage": True}, n=2
    )
    chunks = list(stream)
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["Hello world"] * 2
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_logprobs(official: openai.OpenAI, engine: ScriptedEngine) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 5), Text(0, "H", 1, (TokenLogprob(72, -0.5, ((72, -0.5),)),)))
        ticket.finish()

    engine.script = script
    chat = official.chat.completions.create(model="any", messages=HI, logprobs=True, top_logprobs=1)
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert chat.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5
    legacy = official.completions.create(model="any", prompt="a", logprobs=1)
    assert legacy.choices[0].logprobs is not None
    assert legacy.choices[0].logprobs.top_logprobs == [{"H": -0.5}]


def test_completions(official: openai.OpenAI) -> None:
    assert official.completions.create(model="any", prompt="a", echo=True).choices[0].text == "aHello world"
    stream = official.completions.create(model="any", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello world"


def test_refusals_are_the_clients_own_exceptions(official: openai.OpenAI, engine: ScriptedEngine) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        official.chat.completions.create(model="any", messages=HI, temperature=-1)
    assert bad.value.param == "temperature"
    engine.refusal = RequestError("waited too long", status=429, code="queue_timeout", retry_after=10)
    with pytest.raises(openai.RateLimitError):
        official.chat.completions.create(model="any", messages=HI)


def test_a_stream_that_fails_raises(official: openai.OpenAI, engine: ScriptedEngine) -> None:
    seen = threading.Event()

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 5), Text(0, "a", 1))
        seen.wait(LONG_S)
        ticket.put(Failed(RequestError("no page left", status=503, code="memory")))

    engine.script = script
    stream = official.chat.completions.create(model="any", messages=HI, stream=True)
    next(iter(stream))
    seen.set()
    with pytest.raises(openai.APIError, match="no page left"):
        list(stream)


def test_leaving_a_stream_cancels(official: openai.OpenAI, engine: ScriptedEngine) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 5))
        while not ticket.cancelled.wait(0.002):
            ticket.put(Text(0, "a", 1))

    engine.script = script
    with official.chat.completions.create(model="any", messages=HI, stream=True) as stream:
        next(iter(stream))
    assert engine.tickets[0].cancelled.wait(LONG_S)


def test_models(official: openai.OpenAI) -> None:
    assert [card.id for card in official.models.list()] == ["scripted"]
    assert official.models.retrieve("scripted").owned_by == "tandem"
