"""Refusals of prompts that are longer than the context window, before or after they are encoded."""

from __future__ import annotations

from engine.models.text.interfaces import Tokenizer
from engine.request import RequestError


def check_text(text: str, tokenizer: Tokenizer, window: int, field: str) -> None:
    """Refuse a text that no encoding brings into the window: reading megabytes to count them would take a core for
    many seconds from those who are served. Raises RequestError(400)."""
    least = tokenizer.least_tokens(text)
    if least > window:
        raise too_long(least, window, field, at_least=True)


def check_count(tokens: int, window: int, field: str) -> None:
    """Refuse a prompt of more tokens than the window has. Raises RequestError(400)."""
    if tokens > window:
        raise too_long(tokens, window, field)


def too_long(prompt: int, window: int, field: str, *, at_least: bool = False) -> RequestError:
    """The refusal of a prompt that does not fit. `at_least`: the prompt was not counted to its end."""
    bound = "at least " if at_least else ""
    message = (
        f"the prompt has {bound}{prompt:,} tokens, and the context window of {window:,} tokens must hold it and at "
        f"least one generated token: at most {window - 1:,} prompt tokens fit"
    )
    return RequestError(message, status=400, code="context_length_exceeded", param=field)
