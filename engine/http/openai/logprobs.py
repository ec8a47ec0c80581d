"""Log-probabilities in OpenAI's two forms: finite numbers or null, tokens as shown text and as bytes."""

from __future__ import annotations

import codecs
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


class TextOffsets:
    """Where each token of an answer begins in its text, in characters from `start`. A token within a character begins
    where the character does."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: bytes) -> int:
        """The offset of the next token, whose bytes are `token`."""
        begin = self._at
        self._at += len(self._decoder.decode(token))
        return begin


def legacy_logprobs(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, *, with_top: bool, offsets: TextOffsets
) -> LegacyLogprobs:
    """`offsets` has taken the tokens before these. The chosen token is always among the top."""
    return LegacyLogprobs(
        tokens=[_spelling(entry.token, tokenizer) for entry in entries],
        token_logprobs=[finite(entry.logprob) for entry in entries],
        top_logprobs=[_legacy_top(entry, tokenizer) for entry in entries] if with_top else None,
        text_offset=[offsets.take(tokenizer.token_bytes(entry.token)) for entry in entries],
    )


def _legacy_top(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float | None]:
    """One entry a token, keyed by its text. Of tokens that spell alike the later ones are keyed by their bytes, and by
    their number where these are alike too."""
    ranked = dict(entry.top) | {entry.token: entry.logprob}
    found: dict[str, float | None] = {}
    for token, logprob in ranked.items():
        text = _spelling(token, tokenizer)
        raw = tokenizer.token_bytes(token) or text.encode()
        key = next(key for key in (text, _as_bytes(raw), f"token:{token}") if key not in found)
        found[key] = finite(logprob)
    return found


def _spelling(token: int, tokenizer: Tokenizer) -> str:
    """The token's text, or OpenAI's `bytes:` form where its bytes alone are no text."""
    raw = tokenizer.token_bytes(token)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return _as_bytes(raw)
    return tokenizer.token_text(token)


def _as_bytes(raw: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
