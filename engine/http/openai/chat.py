"""`POST /v1/chat/completions` read: messages, the template's switches, chat's form of log-probabilities."""

from __future__ import annotations

from engine.api import ServedModel
from engine.http.errors import invalid, unsupported
from engine.http.fields import Fields, as_object, shown
from engine.http.openai.call import Call
from engine.http.openai.params import Origin, read_common, refuse_zero_max_tokens
from engine.request import Request, RequestError

MAX_TOP_LOGPROBS = 20

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_PARTS_NOT_BUILT = {
    "image_url": "images are",
    "image": "images are",
    "input_image": "images are",
    "input_audio": "audio is",
    "audio": "audio is",
    "file": "files are",
    "video_url": "video is",
}


def read_chat(fields: Fields, model: ServedModel, origin: Origin) -> Call:
    """The call behind a chat body. Raises RequestError(400) naming the field, also with the template's own words."""
    common = read_common(fields, model)
    if common.max_tokens == 0:
        refuse_zero_max_tokens(fields, "")
    logprobs = _logprobs(fields)
    messages = _messages(fields)
    if model.template is None:
        raise RequestError(
            f"messages: the model {model.name} has no chat template; use /v1/completions",
            status=400,
            code="no_chat_template",
            param="messages",
        )
    continues = fields.flag("continue_final_message", False)
    _check_continuation(fields, messages, continues)
    extra = fields.nested("chat_template_kwargs")
    prompt = model.template.render(
        messages,
        add_generation_prompt=fields.flag("add_generation_prompt", not continues),
        continue_final_message=continues,
        extra=extra.data if extra is not None else None,
    )
    request = Request(
        id=origin.id,
        client=origin.client,
        prompt=prompt.ids,
        first_user_end=prompt.first_user_end,
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
    return Call(request, include_usage=common.include_usage)


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if top is not None and top > 0 and not wanted:
        raise invalid(fields.at("top_logprobs"), f"needs logprobs: true, got {top} without it")
    return (top or 0) if wanted else None


def _check_continuation(fields: Fields, messages: list[dict[str, object]], continues: bool) -> None:
    if not continues:
        return
    if messages[-1]["role"] != "assistant":
        raise invalid(
            fields.at("continue_final_message"), f"needs a final assistant message, got {messages[-1]['role']}"
        )
    if fields.flag("add_generation_prompt", False):
        raise invalid(fields.at("add_generation_prompt"), "cannot be true beside continue_final_message: true")


def _messages(fields: Fields) -> list[dict[str, object]]:
    entries = fields.array("messages")
    if not entries:
        raise invalid(fields.at("messages"), "must hold at least one message")
    return [_message(as_object(entry, f"{fields.at('messages')}[{i}]")) for i, entry in enumerate(entries)]


def _message(fields: Fields) -> dict[str, object]:
    """A message as templates take it: role and string content, with the parts of a tool exchange where it has them."""
    role = fields.text("role")
    if role not in _ROLES:
        raise invalid(fields.at("role"), f"must be one of {', '.join(_ROLES)}, got {shown(role)}")
    message: dict[str, object] = {"role": _ROLES[role], "content": _content(fields, role)}
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    if role == "assistant" and fields.has("tool_calls"):
        message["tool_calls"] = _tool_calls(fields)
    if role == "tool" and (call_id := fields.text("tool_call_id")) is not None:
        message["tool_call_id"] = call_id
    return message


def _content(fields: Fields, role: str) -> str:
    content = fields.get("content")
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise invalid(fields.at("content"), f"must be a string or an array of parts, got {shown(content)}")
    return "\n".join(_part(as_object(part, f"{fields.at('content')}[{i}]")) for i, part in enumerate(content))


def _part(fields: Fields) -> str:
    form = fields.text("type")
    if form in _PARTS_NOT_BUILT:
        raise unsupported(fields.at("type"), f"{form}: {_PARTS_NOT_BUILT[form]}")
    if form not in ("text", "refusal"):
        raise invalid(fields.at("type"), f'must be "text", got {shown(form)}')
    text = fields.text(form)
    if text is None:
        raise invalid(fields.at(form), "must be a string, got null")
    return text


def _tool_calls(fields: Fields) -> list[dict[str, object]]:
    calls: list[dict[str, object]] = []
    for index, entry in enumerate(fields.array("tool_calls") or []):
        call = as_object(entry, f"{fields.at('tool_calls')}[{index}]")
        function = call.nested("function")
        if function is None or (name := function.text("name")) is None:
            raise invalid(call.at("function.name"), "must be a string, got null")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str | dict):
            raise invalid(function.at("arguments"), f"must be a string or an object, got {shown(arguments)}")
        calls.append(
            {
                "id": call.text("id") or "",
                "type": "function",
                "function": {"name": name, "arguments": "{}" if arguments is None else arguments},
            }
        )
    return calls
