"""What the engine refuses before a request gets in: requests that can never run on this model."""

from __future__ import annotations

from engine.api import ServedModel
from engine.models.text.prompt_limits import too_long
from engine.request import Request, RequestError


def check(request: Request, model: ServedModel, vocab_size: int) -> RequestError | None:
    """Why `request` can never run, with the field, the limit and the count; None where it can."""
    field = "messages" if request.first_user_end else "prompt"
    prompt = len(request.prompt)
    if prompt == 0:
        return _bad("the prompt has no tokens; at least 1 is needed", field)
    if prompt >= model.max_len:
        return too_long(prompt, model.max_len, field)
    if not 0 <= min(request.prompt) <= max(request.prompt) < vocab_size:
        return _bad(f"{field} has a token id outside the model's vocabulary of {vocab_size:,} tokens", field)
    if request.max_tokens is not None and request.max_tokens < 1:
        return _bad(f"max_tokens must be at least 1, got {request.max_tokens}", "max_tokens")
    if request.n < 1:
        return _bad(f"n must be at least 1, got {request.n}", "n")
    if "" in request.stop:
        return _bad("stop holds an empty string", "stop")
    for token, _ in request.sampling.logit_bias:
        if not 0 <= token < vocab_size:
            return _bad(f"logit_bias names token {token}; the vocabulary has {vocab_size:,} tokens", "logit_bias")
    return None


def _bad(message: str, param: str) -> RequestError:
    return RequestError(message, status=400, code="invalid_value", param=param)
