"""Finds where a text differs from the text of the same request alone, and how close the two best tokens were there."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.reports import TokenDifference
from tandem.client.chat_stream import ChatRequest, TextPart, TokenLogprob, open_chat
from tandem.client.wire import Address


def first_difference(alone: str, here: str) -> int:
    """The index of the first character that differs; the shorter length where one starts with the other."""
    for at, (one, other) in enumerate(zip(alone, here, strict=False)):
        if one != other:
            return at
    return min(len(alone), len(here))


async def locate(
    address: Address, prompt_index: int, request: ChatRequest, *, alone: str, here: str
) -> TokenDifference:
    """Send `request` alone once more, which asks for the two best tokens, and name the token at which `here` differs.

    The gap is None where that run does not write the alone text again, or writes no token there.
    """
    written: list[TokenLogprob] = []
    async with open_chat(address, request) as answers:
        async for answer in answers:
            if isinstance(answer, TextPart):
                written += answer.logprobs
    return difference_at(prompt_index, written, alone, here)


def difference_at(prompt_index: int, written: Sequence[TokenLogprob], alone: str, here: str) -> TokenDifference:
    """The difference by token, from the alone run's tokens."""
    at = first_difference(alone, here)
    start = 0
    for position, token in enumerate(written):
        if start + len(token.token) > at:
            again = "".join(t.token for t in written).startswith(alone)
            return TokenDifference(
                prompt=prompt_index,
                position=position,
                alone=token.token,
                here=_token_at(token, here[start:]),
                gap_nats=_gap(token) if again else None,
            )
        start += len(token.token)
    return TokenDifference(
        prompt=prompt_index, position=len(written), alone=alone[at : at + 12], here=here[at : at + 12], gap_nats=None
    )


def _token_at(alone: TokenLogprob, rest: str) -> str:
    """What the other text wrote instead: the alone run's second choice where the text goes on with it, else the word
    that the text has there."""
    for other in alone.top_logprobs:
        if other.token != alone.token and other.token and rest.startswith(other.token):
            return other.token
    return rest[: len(alone.token) or 1]


def _gap(token: TokenLogprob) -> float | None:
    best = sorted((top.logprob for top in token.top_logprobs), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None
