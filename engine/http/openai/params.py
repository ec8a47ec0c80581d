"""What both OpenAI routes read alike: fields refused by name, and the parameters of the answer."""

from __future__ import annotations

import secrets
from typing import TypeVar

from engine.http.errors import invalid, unsupported
from engine.http.limits import LARGEST
from engine.http.openai.bodies import Body
from engine.models.text.interfaces import Tokenizer
from engine.request import SamplingParams

NOT_BUILT = {
    "tools": "tools are",
    "functions": "functions are",
    "function_call": "function calls are",
    "response_format": "response formats other than text are",
    "audio": "audio answers are",
    "prediction": "predicted outputs are",
    "web_search_options": "web search is",
    "suffix": "filling in before a suffix is",
    "grammar": "grammars are",
    "json_schema": "JSON schemas are",
    "structured_outputs": "structured outputs are",
    "guided_json": "guided decoding is",
    "guided_regex": "guided decoding is",
    "guided_choice": "guided decoding is",
    "guided_grammar": "guided decoding is",
    "stop_token_ids": "stop token ids are",
    "bad_words": "bad words are",
    "min_tokens": "a least number of tokens is",
    "prompt_logprobs": "log-probabilities of the prompt are",
    "use_beam_search": "beam search is",
}
"""The fields of `Unbuilt` whose presence alone is refused, with the words of the refusal."""

RANDOM_SEED = -1
"""As llama.cpp and vLLM have it."""

T = TypeVar("T")


def given(value: T | None, default: T) -> T:
    return default if value is None else value


def refuse_unbuilt(body: Body) -> None:
    """Raises RequestError(400) for a field that would change the answer and is not built."""
    for name, what in NOT_BUILT.items():
        value = getattr(body, name)
        if value is None or value is False or value in ([], {}, 0, "", "none") or _is_text_format(name, value):
            continue
        raise unsupported(name, what)
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice", "tools are")
    for index, modality in enumerate(body.modalities or []):
        if modality != "text":
            raise unsupported(f"modalities[{index}]", "answers other than text are")
    n = choices(body)
    if body.best_of is not None and body.best_of != n:
        raise unsupported("best_of", f"choosing the best {n} of {body.best_of} is")


def _is_text_format(name: str, value: object) -> bool:
    return name == "response_format" and isinstance(value, dict) and value.get("type") == "text"


def choices(body: Body) -> int:
    return given(body.n, 1)


def max_tokens(body: Body) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def refuse_zero_max_tokens(body: Body, why: str = "") -> None:
    """Raises RequestError(400) where nothing is to be generated."""
    if max_tokens(body) == 0:
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        raise invalid(name, f"must be at least 1{why}, got 0")


def stops(body: Body) -> tuple[str, ...]:
    entries = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return tuple(dict.fromkeys(entries))


def stop_ids(body: Body, tokenizer: Tokenizer) -> frozenset[int]:
    """The control tokens among the stop strings: they add no text in which their spelling could be found."""
    found = (tokenizer.control_token(stop) for stop in stops(body))
    return frozenset(token for token in found if token is not None)


def includes_usage(body: Body) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def sampling(body: Body, vocab_size: int) -> SamplingParams:
    """How tokens are drawn; a seed is drawn where the client names none or -1, so that every answer has one. Raises
    RequestError(400) for a bias of a token that the model does not have."""
    return SamplingParams(
        temperature=given(body.temperature, 1.0),
        top_p=given(body.top_p, 1.0),
        top_k=max(0, given(body.top_k, 0)),
        min_p=given(body.min_p, 0.0),
        seed=secrets.randbits(63) if body.seed in (None, RANDOM_SEED) else body.seed % (LARGEST + 1),
        repetition_penalty=given(body.repetition_penalty, given(body.repeat_penalty, 1.0)),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        logit_bias=_biases(body, vocab_size),
    )


def _biases(body: Body, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = sorted((body.logit_bias or {}).items())
    if biases and biases[-1][0] >= vocab_size:
        token = biases[-1][0]
        raise invalid(f"logit_bias.{token}", f"token ids must be at most {vocab_size - 1}, got {token}")
    return tuple(biases)
