"""OpenAI's answer objects, as they go over the wire."""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every answer object."""


class TopLogprob(Shape, frozen=True, kw_only=True):
    """`logprob` is null where the value is not finite (a token that the sampler had ruled out)."""

    token: str
    logprob: float | None
    bytes: list[int]


class ChatLogprob(TopLogprob, frozen=True, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Shape, frozen=True, kw_only=True):
    content: list[ChatLogprob]
    refusal: None = None


class LegacyLogprobs(Shape, frozen=True, kw_only=True):
    """`text_offset` counts characters from the answer's start; `top_logprobs` is null where none were asked for."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]] | None
    text_offset: list[int]


class CachedDetails(Shape, frozen=True, kw_only=True):
    cached_tokens: int


class Usage(Shape, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedDetails


class Message(Shape, frozen=True, kw_only=True):
    role: str
    content: str
    refusal: None = None


class ChatChoice(Shape, frozen=True, kw_only=True):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str


class TextChoice(Shape, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: str


class ChatCompletion(Shape, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


class TextCompletion(Shape, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str


class ModelCard(Shape, frozen=True, kw_only=True):
    """`max_model_len` is the window in tokens."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "tandem"
    max_model_len: int


class ModelList(Shape, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ModelCard]
