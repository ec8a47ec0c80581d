"""`POST /v1/completions` read: raw prompts as text or token ids, echo, the legacy form of log-probabilities."""

from __future__ import annotations

import msgspec

from engine.api import ServedModel
from engine.http.decoding import decode, shown
from engine.http.dialect import Origin
from engine.http.errors import invalid, unsupported
from engine.http.openai import params
from engine.http.openai.bodies import CompletionBody
from engine.http.openai.render import CompletionRenderer
from engine.models.text.prompt_limits import check_count, check_text
from engine.request import Request

_DECODER = msgspec.json.Decoder(CompletionBody)


def read_completion(data: bytearray, model: ServedModel, origin: Origin, version: str) -> CompletionRenderer:
    """The request behind a completions body. Raises RequestError(400) naming the field, the limit and the value."""
    body = decode(data, _DECODER)
    params.refuse_unbuilt(body)
    echo = bool(body.echo)
    if echo and body.logprobs is not None:
        raise unsupported("echo", "log-probabilities of the prompt are")
    if not echo:
        params.refuse_zero_max_tokens(body, " unless echo is true")
    sampling = params.sampling(body, model.tokenizer.vocab_size)
    ids, text = _prompt(body, model)
    if params.max_tokens(body) == 0:
        check_count(len(ids), model.max_len, "prompt")
    request = Request(
        id=origin.id,
        client=origin.client,
        namespace=origin.namespace,
        model=body.model or model.name,
        prompt=ids,
        max_tokens=params.max_tokens(body),
        n=params.choices(body),
        stop=params.stops(body),
        stop_ids=params.stop_ids(body, model.tokenizer),
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        logprobs=body.logprobs,
        sampling=sampling,
    )
    include_usage = params.includes_usage(body)
    return CompletionRenderer(request, model, version, include_usage=include_usage, echo=text if echo else "")


def _prompt(body: CompletionBody, model: ServedModel) -> tuple[tuple[int, ...], str]:
    """The prompt's ids and its text, from a string, a list of token ids, or a list that holds one of these."""
    prompt: object = body.prompt
    path = "prompt"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise unsupported(path, f"{len(prompt)} prompts in one request are")
        prompt, path = prompt[0], f"{path}[0]"
    if isinstance(prompt, str):
        check_text(prompt, model.tokenizer, model.max_len, path)
        ids, text = tuple(model.tokenizer.prompt_ids(prompt, special=bool(body.special_tokens))), prompt
    elif isinstance(prompt, list):
        ids = _token_ids(prompt, model, path)
        text = b"".join(map(model.tokenizer.token_bytes, ids)).decode(errors="replace")
    else:
        raise invalid(path, f"must be a string or an array of token ids, got {shown(prompt)}")
    if not ids:
        raise invalid(path, "holds no token")
    return ids, text


def _token_ids(prompt: list[object], model: ServedModel, path: str) -> tuple[int, ...]:
    check_count(len(prompt), model.max_len, path)
    last = model.tokenizer.vocab_size - 1
    ids = []
    for index, token in enumerate(prompt):
        if not isinstance(token, int):
            raise invalid(f"{path}[{index}]", f"must be an integer, got {shown(token)}")
        if token > last:
            raise invalid(f"{path}[{index}]", f"must be an integer, at least 0 and at most {last}, got {token}")
        ids.append(token)
    return tuple(ids)
