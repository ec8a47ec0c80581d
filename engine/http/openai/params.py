"""The fields that both OpenAI routes share: what is honoured, what is refused by name, and every limit.

Anything not named here or in the route's own file is accepted without effect (`user`, `metadata`, `store`,
`service_tier`, other servers' sampler knobs), so that clients written for other servers work unchanged.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from engine.api import ServedModel
from engine.http.errors import invalid, unsupported
from engine.http.fields import Fields, as_integer, as_number, shown
from engine.request import SamplingParams

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
SEED_LIMIT = 1 << 63
LEAST_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Factors on logits in float32: far beyond any use, and far from where a logit would overflow."""

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
"""Fields that would change the answer if they were obeyed, and are not built: refused rather than ignored."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks: the request's id, the client's label, and the namespace of its caches."""

    id: str
    client: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Common:
    """The shared fields of one request, checked."""

    model: str
    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    sampling: SamplingParams


def read_common(fields: Fields, model: ServedModel) -> Common:
    """Raises RequestError(400) naming the field, the limit and the value."""
    refuse_unbuilt(fields)
    stream = fields.flag("stream", False)
    options = fields.nested("stream_options")
    return Common(
        model=fields.text("model") or model.name,
        n=_choices(fields),
        max_tokens=_max_tokens(fields),
        stop=_stops(fields),
        ignore_eos=fields.flag("ignore_eos", False),
        stream=stream,
        include_usage=options is not None and options.flag("include_usage", False),
        sampling=_sampling(fields, model.tokenizer.vocab_size),
    )


def refuse_unbuilt(fields: Fields) -> None:
    for name, what in NOT_BUILT.items():
        value = fields.get(name)
        if value is None or value is False or value in ([], {}, 0, "", "none") or _is_text_format(name, value):
            continue
        raise unsupported(fields.at(name), what)
    choice = fields.get("tool_choice")
    if choice not in (None, "none", "auto"):
        raise unsupported(fields.at("tool_choice"), "tools are")
    for index, modality in enumerate(fields.array("modalities") or []):
        if modality != "text":
            raise unsupported(f"{fields.at('modalities')}[{index}]", "answers other than text are")


def _is_text_format(name: str, value: object) -> bool:
    return name == "response_format" and isinstance(value, dict) and value.get("type") == "text"


def _choices(fields: Fields) -> int:
    n = fields.integer("n", low=1, high=MAX_CHOICES) or 1
    best_of = fields.integer("best_of", low=1)
    if best_of is not None and best_of != n:
        raise unsupported(fields.at("best_of"), f"choosing the best {n} of {best_of} is")
    return n


def _max_tokens(fields: Fields) -> int | None:
    newer = fields.integer("max_completion_tokens", low=0)
    older = fields.integer("max_tokens", low=0)
    return older if newer is None else newer


def refuse_zero_max_tokens(fields: Fields, why: str) -> None:
    name = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    raise invalid(fields.at(name), f"must be at least 1{why}, got 0")


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    path = fields.at("stop")
    if value is None:
        return ()
    entries = value if isinstance(value, list) else [value]
    if len(entries) > MAX_STOPS:
        raise invalid(path, f"must hold at most {MAX_STOPS} strings, got {len(entries)}")
    stops = []
    for index, entry in enumerate(entries):
        entry_path = f"{path}[{index}]" if isinstance(value, list) else path
        if not isinstance(entry, str) or not entry:
            raise invalid(entry_path, f"must be a string that is not empty, got {shown(entry)}")
        if len(entry) > MAX_STOP_CHARACTERS:
            raise invalid(entry_path, f"must be at most {MAX_STOP_CHARACTERS} characters, got {len(entry)}")
        stops.append(entry)
    return tuple(dict.fromkeys(stops))


def _sampling(fields: Fields, vocab_size: int) -> SamplingParams:
    top_k = fields.integer("top_k", low=-1) or 0
    repetition = "repetition_penalty" if fields.has("repetition_penalty") else "repeat_penalty"
    return SamplingParams(
        temperature=fields.number("temperature", 1.0, low=0.0),
        top_p=fields.number("top_p", 1.0, above=0.0, high=1.0),
        top_k=max(0, top_k),
        min_p=fields.number("min_p", 0.0, low=0.0, high=1.0),
        seed=_seed(fields),
        repetition_penalty=fields.number(repetition, 1.0, low=LEAST_REPETITION_PENALTY, high=MAX_REPETITION_PENALTY),
        presence_penalty=fields.number("presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, low=-2.0, high=2.0),
        logit_bias=_logit_bias(fields, vocab_size),
    )


def _seed(fields: Fields) -> int:
    """The seed as a number of 63 bits; one is drawn where the client names none, so that every answer has one."""
    seed = fields.integer("seed", low=-SEED_LIMIT, high=SEED_LIMIT - 1)
    return secrets.randbits(63) if seed is None else seed % SEED_LIMIT


def _logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = fields.nested("logit_bias")
    if biases is None:
        return ()
    if len(biases.data) > MAX_BIASES:
        raise invalid(biases.path, f"must hold at most {MAX_BIASES} tokens, got {len(biases.data)}")
    pairs: dict[int, float] = {}
    for key, value in biases.data.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise invalid(biases.path, f"keys must be token ids, got {shown(key)}")
        token = as_integer(int(key), biases.at(key), low=0, high=vocab_size - 1)
        pairs[token] = as_number(value, biases.at(key), low=-100.0, high=100.0)
    return tuple(sorted(pairs.items()))
