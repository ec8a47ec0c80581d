"""Events written as OpenAI's chunks and answers. A chunk is a prebuilt head, the text as JSON, a prebuilt tail."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import msgspec

from engine.api import ServedModel
from engine.http.answers import Answer
from engine.http.errors import error_body
from engine.http.openai.logprobs import TextOffsets, chat_logprobs, legacy_logprobs
from engine.http.openai.shapes import (
    CachedDetails,
    ChatChoice,
    ChatCompletion,
    LegacyLogprobs,
    Message,
    TextChoice,
    TextCompletion,
    Usage,
)
from engine.request import Done, Finished, Request, RequestError, Text, TokenLogprob

_json = msgspec.json.Encoder().encode


def fingerprint(model: ServedModel, version: str) -> str:
    """The `system_fingerprint`: it changes with the program's version and the model, which may change the bits."""
    return "fp_" + hashlib.blake2b(f"{version}/{model.name}".encode(), digest_size=5).hexdigest()


def usage_of(done: Done) -> Usage:
    return Usage(
        prompt_tokens=done.prompt_tokens,
        completion_tokens=done.completion_tokens,
        total_tokens=done.prompt_tokens + done.completion_tokens,
        prompt_tokens_details=CachedDetails(cached_tokens=done.cached_tokens),
    )


class _OpenAIRenderer:
    """What both routes share: the parts of a chunk that never change within one answer."""

    id_prefix: str
    chunk_object: str

    def __init__(self, request: Request, model: ServedModel, version: str, *, include_usage: bool) -> None:
        self.request = request
        self.include_usage = include_usage
        self.tokenizer = model.tokenizer
        self.id = self.id_prefix + request.id
        self.created = int(time.time())
        self.model = request.model
        self.fingerprint = fingerprint(model, version)
        shared = _json(
            {
                "id": self.id,
                "object": self.chunk_object,
                "created": self.created,
                "model": self.model,
                "system_fingerprint": self.fingerprint,
            }
        )
        self._head = b"data: " + shared[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def done(self, event: Done) -> bytes:
        last = b"data: [DONE]\n\n"
        if not self.include_usage:
            return last
        return self._head + b'],"usage":' + _json(usage_of(event)) + b"}\n\n" + last

    def status(self, words: str) -> bytes:
        return b""

    def failed(self, error: RequestError) -> bytes:
        return b"data: " + error_body(error) + b"\n\n"

    def refusal(self, error: RequestError) -> bytes:
        return error_body(error)


class ChatRenderer(_OpenAIRenderer):
    """`/v1/chat/completions`: the role first, then content deltas, `finish_reason` null until each choice's end."""

    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"

    def __init__(self, request: Request, model: ServedModel, version: str, *, include_usage: bool) -> None:
        super().__init__(request, model, version, include_usage=include_usage)
        self._text_heads = [self._head + b'{"index":%d,"delta":{"content":' % i for i in range(request.n)]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def opening(self) -> bytes:
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return b"".join(self._head + role % i + self._tail for i in range(self.request.n))

    def status(self, words: str) -> bytes:
        """As reasoning of the first choice; clients do not send reasoning back, and `messages` ignores it."""
        end = b'{"index":0,"delta":{"reasoning_content":%b},"logprobs":null,"finish_reason":null}' % _json(words + "\n")
        return self._head + end + self._tail

    def text(self, event: Text) -> bytes:
        head = self._text_heads[event.choice]
        if not event.logprobs:
            return head + _json(event.text) + self._text_tail if event.text else b""
        logprobs = _json(chat_logprobs(event.logprobs, self.tokenizer))
        return head + _json(event.text) + b'},"logprobs":' + logprobs + b',"finish_reason":null}' + self._tail

    def finished(self, event: Finished) -> bytes:
        end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}' % (event.choice, _json(event.reason))
        return self._head + end + self._tail

    def answer(self, answer: Answer, done: Done) -> bytes:
        wants_logprobs = self.request.logprobs is not None
        choices = [
            ChatChoice(
                index=index,
                message=Message(role="assistant", content=choice.text),
                logprobs=chat_logprobs(choice.logprobs, self.tokenizer) if wants_logprobs else None,
                finish_reason=choice.reason,
            )
            for index, choice in enumerate(answer.choices)
        ]
        return _json(
            ChatCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage_of(done),
                system_fingerprint=self.fingerprint,
            )
        )


class CompletionRenderer(_OpenAIRenderer):
    """`/v1/completions`: plain text pieces; with `echo` the prompt's text comes first."""

    id_prefix = "cmpl-"
    chunk_object = "text_completion"

    def __init__(
        self, request: Request, model: ServedModel, version: str, *, include_usage: bool, echo: str = ""
    ) -> None:
        """`echo` is the prompt's text where the answer is to begin with it."""
        super().__init__(request, model, version, include_usage=include_usage)
        self._echo = echo
        self._text_heads = [self._head + b'{"index":%d,"text":' % i for i in range(request.n)]
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._offsets = [TextOffsets(len(echo)) for _ in range(request.n)]

    def opening(self) -> bytes:
        if not self._echo:
            return b""
        text = _json(self._echo)
        return b"".join(head + text + self._text_tail for head in self._text_heads)

    def text(self, event: Text) -> bytes:
        head = self._text_heads[event.choice]
        if not event.logprobs:
            return head + _json(event.text) + self._text_tail if event.text else b""
        logprobs = self._logprobs(event.choice, event.logprobs)
        return head + _json(event.text) + b',"logprobs":' + _json(logprobs) + b',"finish_reason":null}' + self._tail

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> LegacyLogprobs:
        """Those of the next tokens of a choice."""
        with_top = bool(self.request.logprobs)
        return legacy_logprobs(entries, self.tokenizer, with_top=with_top, offsets=self._offsets[choice])

    def finished(self, event: Finished) -> bytes:
        end = b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b}' % (event.choice, _json(event.reason))
        return self._head + end + self._tail

    def answer(self, answer: Answer, done: Done) -> bytes:
        wants_logprobs = self.request.logprobs is not None
        choices = [
            TextChoice(
                index=index,
                text=self._echo + choice.text,
                logprobs=self._logprobs(index, choice.logprobs) if wants_logprobs else None,
                finish_reason=choice.reason,
            )
            for index, choice in enumerate(answer.choices)
        ]
        return _json(
            TextCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage_of(done),
                system_fingerprint=self.fingerprint,
            )
        )
