"""Log-probabilities in OpenAI's two forms: finite numbers or null, tokens as shown text and as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.http.openai.shapes import ChatLogprob, ChatLogprobs, LegacyLogprobs, TopLogprob
from engine.models.text.interfaces import Tokenizer
from engine.request import TokenLogprob


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=tokenizer.token_text(entry.token),
                logprob=finite(entry.logprob),
                bytes=list(tokenizer.token_bytes(entry.token)),
                top_logprobs=[_top(token, logprob, tokenizer) for token, logprob in entry.top],
            )
            for entry in entries
        ]
    )


def _top(token: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(
        token=tokenizer.token_text(token), logprob=finite(logprob), bytes=list(tokenizer.token_bytes(token))
    )


def legacy_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, *, with_top: bool, offset: int
) -> LegacyLogprobs:
    """`offset` is the number of characters of the tokens before these. The chosen token is always among the top."""
    tokens = [tokenizer.token_text(entry.token) for entry in entries]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    tops: list[dict[str, float | None]] = [
        {tokenizer.token_text(token): finite(logprob) for token, logprob in (*entry.top, (entry.token, entry.logprob))}
        for entry in entries
    ]
    return LegacyLogprobs(
        tokens=tokens,
        token_logprobs=[finite(entry.logprob) for entry in entries],
        top_logprobs=tops if with_top else None,
        text_offset=offsets,
    )
