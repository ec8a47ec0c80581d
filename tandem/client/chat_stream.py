"""Chat completions as a typed stream of waits, pieces of text and an end: what chat, bench and check read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass

import msgspec

from tandem.client.wire import Address, Comment, Data, EngineError, Opened, StreamEvent, refusal, stream
from tandem.exits import CommandError

CHAT_PATH = "/v1/chat/completions"


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request. `top_logprobs` None asks for no log-probabilities; `ignore_eos` writes on to `max_tokens`."""

    messages: Sequence[ChatMessage]
    _: KW_ONLY
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    client: str = "tandem"
    model: str = "default"

    def body(self) -> bytes:
        fields: dict[str, object] = {
            "model": self.model,
            "messages": list(self.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        optional = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        fields |= {name: value for name, value in optional.items() if value is not None}
        if self.top_logprobs is not None:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return msgspec.json.encode(fields)


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    top_logprobs: list[TopLogprob] = []


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


@dataclass(frozen=True, slots=True)
class WaitNote:
    """A comment of the stream: why it does not write yet."""

    text: str


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The answer is whole. `cut` is the engine's note where it served less than the asked `max_tokens`."""

    finish: str
    usage: Usage | None
    cut: str | None


AnswerEvent = WaitNote | TextPart | AnswerEnd


class _Delta(msgspec.Struct):
    content: str | None = None


class _Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: EngineError | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


@asynccontextmanager
async def open_chat(address: Address, question: ChatRequest) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
    """Send a chat request and hand out its answer; leaving the block early cancels it.

    Raises what `wire.stream` does; an error event within the stream is Refused.
    """
    async with (
        stream(address, CHAT_PATH, question.body(), client=question.client) as events,
        aclosing(_answers(events)) as answers,
    ):
        yield answers


async def _answers(events: AsyncIterator[StreamEvent]) -> AsyncGenerator[AnswerEvent, None]:
    finish, usage, cut = "", None, None
    async for event in events:
        match event:
            case Opened(headers):
                cut = headers.get("x-tandem-max-tokens")
                if "x-tandem-wait" in headers:
                    yield WaitNote(f"waiting for {headers['x-tandem-wait']}")
            case Comment(text):
                yield WaitNote(text)
            case Data(body):
                chunk = _chunk(body)
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    logprobs = (choice.logprobs.content if choice.logprobs else None) or ()
                    if choice.delta.content or logprobs:
                        yield TextPart(choice.delta.content or "", logprobs)
                    finish = choice.finish_reason or finish
    yield AnswerEnd(finish, usage, cut)


def _chunk(body: bytes) -> _Chunk:
    try:
        chunk = _decode(body)
    except msgspec.MsgspecError as why:
        raise CommandError(f"a stream event is not a chat chunk ({why}): {body[:200]!r}") from why
    if chunk.error is not None:
        raise refusal(0, body)
    return chunk
