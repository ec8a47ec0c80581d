"""`POST /v1/completions` read: raw prompts as text or token ids, echo, the legacy form of log-probabilities."""

from __future__ import annotations

from engine.api import ServedModel
from engine.checks import check_count, check_text
from engine.http.errors import invalid, unsupported
from engine.http.fields import Fields, as_integer, shown
from engine.http.openai.call import Call
from engine.http.openai.params import Origin, read_common, refuse_zero_max_tokens
from engine.request import Request

MAX_LOGPROBS = 5


def read_completion(fields: Fields, model: ServedModel, origin: Origin) -> Call:
    """The call behind a completions body. Raises RequestError(400) naming the field, the limit and the value."""
    common = read_common(fields, model)
    logprobs = fields.integer("logprobs", low=0, high=MAX_LOGPROBS)
    echo = fields.flag("echo", False)
    if echo and logprobs is not None:
        raise unsupported(fields.at("echo"), "log-probabilities of the prompt are")
    if common.max_tokens == 0 and not echo:
        refuse_zero_max_tokens(fields, " unless echo is true")
    ids, text = _prompt(fields, model)
    if common.max_tokens == 0:
        check_count(len(ids), model.max_len, "prompt")
    request = Request(
        id=origin.id,
        client=origin.client,
        prompt=ids,
        max_tokens=common.max_tokens,
        n=common.n,
        stop=common.stop,
        ignore_eos=common.ignore_eos,
        stream=common.stream,
        logprobs=logprobs,
        sampling=common.sampling,
        namespace=origin.namespace,
        model=common.model,
    )
    return Call(
        request,
        include_usage=common.include_usage,
        echo=text if echo else "",
        prompt_only=common.max_tokens == 0,
    )


def _prompt(fields: Fields, model: ServedModel) -> tuple[tuple[int, ...], str]:
    """The prompt's ids and its text, from a string, a list of token ids, or a list that holds one of these."""
    tokenizer = model.tokenizer
    value = fields.get("prompt")
    path = fields.at("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise unsupported(path, f"{len(value)} prompts in one request are")
        value, path = value[0], f"{path}[0]"
    if isinstance(value, str):
        check_text(value, tokenizer, model.max_len, path)
        ids, text = tuple(tokenizer.prompt_ids(value)), value
    elif isinstance(value, list):
        check_count(len(value), model.max_len, path)
        ids = tuple(
            as_integer(item, f"{path}[{i}]", low=0, high=tokenizer.vocab_size - 1) for i, item in enumerate(value)
        )
        text = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
    else:
        raise invalid(path, f"must be a string or an array of token ids, got {shown(value)}")
    if not ids:
        raise invalid(path, "holds no token")
    return ids, text
