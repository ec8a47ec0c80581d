"""The bodies of OpenAI's routes, each field with its bounds. A null counts as absent.

A field that is not named here is accepted without effect (`store`, `service_tier`, other servers' sampler knobs), so
that clients written for other servers work unchanged. What holds between two fields is checked where the body becomes a
request (`chat.py`, `completions.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.http import limits

LEAST_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Factors on logits in float32: far beyond any use, and far from where a logit would overflow."""

MAX_TOP_LOGPROBS = 20
MAX_LEGACY_LOGPROBS = 5

Name = Annotated[str, Meta(max_length=limits.MAX_NAME)]
Id = Annotated[str, Meta(max_length=limits.MAX_ID)]
User = Annotated[str, Meta(max_length=limits.MAX_USER)]
Stop = Annotated[str, Meta(min_length=1, max_length=limits.MAX_STOP)]
Stops = Annotated[list[Stop], Meta(max_length=limits.MAX_STOPS, extra={"noun": "strings"})]
Count = Annotated[int, Meta(ge=0, le=limits.LARGEST)]
TokenId = Annotated[int, Meta(ge=0, le=limits.LARGEST)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=LEAST_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)]
Share = Annotated[float, Meta(ge=0, le=1)]
Biases = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=limits.MAX_BIASES, extra={"noun": "token ids"}),
]
MetadataKey = Annotated[str, Meta(max_length=limits.MAX_METADATA_KEY)]
MetadataText = Annotated[str, Meta(max_length=limits.MAX_METADATA_VALUE)]
MetadataValue = MetadataText | bool | int | float | list[Any] | dict[str, Any] | None
Switches = Annotated[dict[Name, Any], Meta(max_length=limits.MAX_TEMPLATE_SWITCHES)]


class _Part(msgspec.Struct, frozen=True):
    """The base of what bodies are made of."""


class StreamOptions(_Part, frozen=True):
    include_usage: bool | None = None


class Unbuilt(_Part, frozen=True, kw_only=True):
    """Fields that would change the answer if they were obeyed, and are not built: refused rather than ignored."""

    audio: Any = None
    bad_words: Any = None
    function_call: Any = None
    functions: Any = None
    grammar: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    json_schema: Any = None
    min_tokens: Any = None
    prediction: Any = None
    prompt_logprobs: Any = None
    response_format: Any = None
    stop_token_ids: Any = None
    structured_outputs: Any = None
    suffix: Any = None
    tool_choice: Any = None
    tools: Any = None
    use_beam_search: Any = None
    web_search_options: Any = None


class Body(Unbuilt, frozen=True, kw_only=True):
    """What both routes take."""

    model: Annotated[str, Meta(max_length=limits.MAX_MODEL)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=limits.MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=limits.LARGEST)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: Stop | Stops | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=limits.LARGEST)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-limits.LARGEST - 1, le=limits.LARGEST)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    modalities: Annotated[list[Name], Meta(max_length=limits.MAX_PARTS, extra={"noun": "modalities"})] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=limits.MAX_METADATA)] | None = None
    user: User | None = None
    safety_identifier: User | None = None
    prompt_cache_key: User | None = None


class Part(_Part, frozen=True):
    """A part of a message's content."""

    type: Name | None = None
    text: str | None = None
    refusal: str | None = None


class Function(_Part, frozen=True):
    """A function that was called: its arguments as JSON in a string, or as the object itself."""

    name: Name | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(_Part, frozen=True):
    id: Id | None = None
    function: Function | None = None


class Message(_Part, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Meta(max_length=limits.MAX_PARTS, extra={"noun": "parts"})] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=limits.MAX_TOOL_CALLS, extra={"noun": "calls"})] | None = None
    tool_call_id: Id | None = None


class ChatBody(Body, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(max_length=limits.MAX_MESSAGES, extra={"noun": "messages"})] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Switches | None = None


class CompletionBody(Body, frozen=True, kw_only=True):
    """`POST /v1/completions`. A list is one prompt of token ids, or holds one prompt."""

    prompt: str | list[TokenId | str | list[TokenId]] | None = None
    special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LEGACY_LOGPROBS)] | None = None
