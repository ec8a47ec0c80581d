"""`/v1/completions`: prompts as text and ids, echo, prompt-only answers, legacy log-probabilities."""

from __future__ import annotations

import httpx
import pytest

from engine.http.openai.logprobs import TextOffsets, legacy_logprobs
from engine.request import Admitted, Done, Finished, FinishReason, Text, TokenLogprob
from tests.engine.http.talk import COMPLETIONS, content_of, error_of, events
from tests.support.scripted_engine import BOS, EOS, MAX_LEN, ScriptedEngine, Ticket


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_prompt_forms(client: httpx.Client, engine: ScriptedEngine, prompt: object) -> None:
    response = client.post(COMPLETIONS, json={"prompt": prompt})
    assert response.status_code == 200
    assert engine.last.prompt == (97, 98)
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["model"] == "scripted"
    assert body["choices"] == [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: httpx.Client, prompt: object, stream: bool) -> None:
    response = client.post(COMPLETIONS, json={"prompt": prompt, "echo": True, "stream": stream, "n": 2})
    if stream:
        texts = [content_of(events(response.text), choice) for choice in (0, 1)]
    else:
        texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["abHello world"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_only_answer(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 0, "stream": stream, "stream_options": {"include_usage": True}}
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 200
    if stream:
        chunks = events(response.text)
        assert content_of(chunks) == "ab"
        assert chunks[-3]["choices"][0]["finish_reason"] == "length"
        usage = chunks[-2]["usage"]
    else:
        assert response.json()["choices"][0] == {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}
        usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 0)
    assert engine.tickets == [], "nothing was to be generated"


def test_prompt_only_answer_within_the_window(client: httpx.Client) -> None:
    response = client.post(COMPLETIONS, json={"prompt": "x" * (MAX_LEN + 1), "echo": True, "max_tokens": 0})
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert f"{MAX_LEN + 1:,}" in error_of(response)["message"]


def test_ids_far_too_many_are_refused_unread(client: httpx.Client) -> None:
    """Looking at each of a million ids would take a core for a second: not one is."""
    response = client.post(COMPLETIONS, json={"prompt": [97] * MAX_LEN + ["no id"]})
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert error_of(response)["param"] == "prompt"
    assert f"{MAX_LEN + 1:,}" in error_of(response)["message"]


def test_a_text_far_too_long_is_refused_unread(client: httpx.Client) -> None:
    response = client.post(COMPLETIONS, json={"prompt": "x" * (2 * MAX_LEN + 2)})
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert f"at least {MAX_LEN + 1:,} tokens, and the context window of {MAX_LEN:,}" in error_of(response)["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [0, 2])
def test_legacy_logprobs(client: httpx.Client, engine: ScriptedEngine, stream: bool, count: int) -> None:
    def script(ticket: Ticket) -> None:
        top = ((98, -0.5), (99, -1.5))[:count]
        ticket.put(Admitted(0, 0, 10), Text(0, "b", 1, (TokenLogprob(98, -0.5, top),)))
        ticket.put(Text(0, "c", 1, (TokenLogprob(99, -float("inf"), top),)))
        ticket.put(Finished(0, FinishReason.LENGTH, 2), Done(1, 0, 2))

    engine.script = script
    response = client.post(COMPLETIONS, json={"prompt": "a", "logprobs": count, "stream": stream})
    assert engine.last.logprobs == count
    if stream:
        parts = [c["logprobs"] for chunk in events(response.text)[:-1] for c in chunk["choices"] if c["logprobs"]]
    else:
        parts = [response.json()["choices"][0]["logprobs"]]
    assert [token for part in parts for token in part["tokens"]] == ["b", "c"]
    assert [value for part in parts for value in part["token_logprobs"]] == [-0.5, None]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 1]
    tops = [part["top_logprobs"] for part in parts]
    if count == 0:
        assert all(top is None for top in tops)
    else:
        assert tops[0][0] == {"b": -0.5, "c": -1.5}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 258]}, "prompt[1]"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "echo": True, "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
    ],
)
def test_refused_by_name(client: httpx.Client, engine: ScriptedEngine, fields: dict[str, object], param: str) -> None:
    response = client.post(COMPLETIONS, json=fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert param in error_of(response)["message"]
    assert engine.tickets == []


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_within_characters(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    """Parts of an emoji and of CJK: offsets count characters of the text, and five alternatives stay five."""
    text = "a\U0001f600b\u6f22c"
    top = tuple((0x80 + i, -1.0 - i) for i in range(5))

    def entries(part: str) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(byte, -1.0, ((byte, -1.0), *top)[:5]) for byte in part.encode())

    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 20))
        for part in text:
            ticket.put(Text(0, part, len(part.encode()), entries(part)))
        ticket.put(Finished(0, FinishReason.LENGTH, 10), Done(1, 0, 10))

    engine.script = script
    response = client.post(COMPLETIONS, json={"prompt": "a", "logprobs": 5, "stream": stream})
    if stream:
        choices = [c for chunk in events(response.text)[:-1] for c in chunk["choices"]]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == text
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    offsets = [offset for part in parts for offset in part["text_offset"]]
    assert offsets == [0, 1, 1, 1, 1, 2, 3, 3, 3, 4]
    tokens = [token for part in parts for token in part["tokens"]]
    assert tokens[:5] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    tops = [top for part in parts for top in part["top_logprobs"]]
    # 0x80 is both chosen and first of the alternatives where it ends the emoji.
    assert [len(top) for top in tops] == [4 if token == "bytes:\\x80" else 5 for token in tokens]


class Alike:
    """Tokens that spell alike: a word, the word again, and a control token of that spelling."""

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == 3 else b"x"

    def token_text(self, token: int) -> str:
        return "x"


def test_tokens_that_spell_alike_are_kept_apart() -> None:
    entry = TokenLogprob(1, -1.0, ((1, -1.0), (2, -2.0), (3, -3.0)))
    found = legacy_logprobs([entry], Alike(), with_top=True, offsets=TextOffsets(7))  # type: ignore[arg-type]
    assert found.top_logprobs == [{"x": -1.0, "bytes:\\x78": -2.0, "token:3": -3.0}]
    assert (found.tokens, found.text_offset) == (["x"], [7])


@pytest.mark.parametrize(("fields", "first"), [({}, ord("<")), ({"special_tokens": True}, BOS)])
def test_special_spellings_in_a_raw_prompt_are_the_clients_choice(
    client: httpx.Client, engine: ScriptedEngine, fields: dict[str, object], first: int
) -> None:
    assert client.post(COMPLETIONS, json={"prompt": "<s>a", "stop": "</s>", **fields}).status_code == 200
    assert engine.last.prompt[0] == first
    assert engine.last.stop_ids == {EOS}
