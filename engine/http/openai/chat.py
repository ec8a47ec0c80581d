"""`POST /v1/chat/completions` read: messages as templates take them, and what holds between fields."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.api import ServedModel
from engine.http.decoding import decode, shown
from engine.http.dialect import Origin
from engine.http.errors import invalid, unsupported
from engine.http.openai import params
from engine.http.openai.bodies import ChatBody, Message, Part, ToolCall
from engine.http.openai.render import ChatRenderer
from engine.models.text.prompt_limits import check_text
from engine.request import Request, RequestError

_DECODER = msgspec.json.Decoder(ChatBody)
_PARTS_NOT_BUILT = {
    "image_url": "images are",
    "image": "images are",
    "input_image": "images are",
    "input_audio": "audio is",
    "audio": "audio is",
    "file": "files are",
    "video_url": "video is",
}
_RESERVED = frozenset({
    "messages", "tools", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now",
})  # fmt: skip
"""What a template is given by the engine. Names that end in `_token` belong to the model's file."""


def read_chat(data: bytearray, model: ServedModel, origin: Origin, version: str) -> ChatRenderer:
    """The request behind a chat body. Raises RequestError(400) naming the field, also with the template's own words."""
    body = decode(data, _DECODER)
    params.refuse_unbuilt(body)
    params.refuse_zero_max_tokens(body)
    logprobs = _logprobs(body)
    sampling = params.sampling(body, model.tokenizer.vocab_size)
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages or [])]
    if not messages:
        raise invalid("messages", "must hold at least one message")
    if model.template is None:
        raise RequestError(
            f"messages: the model {model.name} has no chat template; use /v1/completions",
            status=400,
            code="no_chat_template",
            param="messages",
        )
    _check_continuation(body, messages)
    _check_switches(body)
    # Before the template runs: rendering megabytes that cannot fit would take seconds from those who are served.
    check_text("".join(message["content"] for message in messages), model.tokenizer, model.max_len, "messages")
    continues = bool(body.continue_final_message)
    prompt = model.template.render(
        messages,
        add_generation_prompt=params.given(body.add_generation_prompt, not continues),
        continue_final_message=continues,
        extra=body.chat_template_kwargs,
    )
    request = Request(
        id=origin.id,
        client=origin.client,
        namespace=origin.namespace,
        model=body.model or model.name,
        prompt=prompt.ids,
        first_user_end=prompt.first_user_end,
        max_tokens=params.max_tokens(body),
        n=params.choices(body),
        stop=params.stops(body),
        stop_ids=params.stop_ids(body, model.tokenizer),
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        logprobs=logprobs,
        sampling=sampling,
    )
    return ChatRenderer(request, model, version, include_usage=params.includes_usage(body))


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", f"needs logprobs: true, got {body.top_logprobs} without it")
    return (body.top_logprobs or 0) if body.logprobs else None


def _check_continuation(body: ChatBody, messages: list[dict[str, Any]]) -> None:
    if not body.continue_final_message:
        return
    if (role := messages[-1]["role"]) != "assistant":
        raise invalid("continue_final_message", f"needs a final assistant message, got {role}")
    if body.add_generation_prompt:
        raise invalid("add_generation_prompt", "cannot be true beside continue_final_message: true")


def _check_switches(body: ChatBody) -> None:
    for name in body.chat_template_kwargs or {}:
        if name in _RESERVED or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs.{name}", "is a name that the engine itself gives the template")


def _message(message: Message, path: str) -> dict[str, Any]:
    """A message as templates take it: role and string content, with the parts of a tool exchange where it has them."""
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": _content(message, f"{path}.content")}
    if message.name is not None:
        rendered["name"] = message.name
    if role == "assistant" and message.tool_calls is not None:
        rendered["tool_calls"] = [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    if role == "tool" and message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _content(message: Message, path: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise invalid(path, "must be a string or an array of parts, got null")
    return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(message.content))


def _part(part: Part, path: str) -> str:
    if part.type in _PARTS_NOT_BUILT:
        raise unsupported(f"{path}.type", f"{part.type}: {_PARTS_NOT_BUILT[part.type]}")
    if part.type not in ("text", "refusal"):
        raise invalid(f"{path}.type", f'must be "text", got {shown(part.type)}')
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise invalid(f"{path}.{part.type}", "must be a string, got null")
    return text


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    function = call.function
    if function is None or function.name is None:
        raise invalid(f"{path}.function.name", "must be a string, got null")
    arguments = params.given(function.arguments, "{}")
    return {"id": call.id or "", "type": "function", "function": {"name": function.name, "arguments": arguments}}
