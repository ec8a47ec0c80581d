"""The model's own chat template: renders a conversation, tokenises it, and keeps what clients write as text.

The template runs in a process of its own (`template_process.py`), which sees what Hugging Face's chat templates rely
on. A control token's spelling inside a message never becomes that token: each such spelling is broken by a character
that occurs nowhere in the conversation before the template runs, and mended after the rendered text has been cut at the
template's own control tokens. Conversations without such spellings are rendered untouched.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.models.text.interfaces import ChatPrompt
from engine.models.text.prompt_limits import check_text
from engine.models.text.template_process import (
    Rendered,
    Rendering,
    TemplateBroken,
    TemplateBusy,
    TemplateFault,
    TemplateOverLimit,
    TemplateProcess,
)
from engine.models.text.tokenizer import GgufTokenizer
from engine.models.weights.gguf import Metadata
from engine.request import RequestError

LEAST_CHARACTERS, MOST_CHARACTERS = 1 << 20, 32 << 20
"""Bounds of how much text a template may make: four times what can fit the window, so that a prompt somewhat too long
is refused with its count."""

_USUAL = ("\ufdd0", "\ufdd1")
"""Noncharacters, which no text should hold."""

_SPARE = range(0x40000, 0xE0000)
"""The planes where nothing is assigned."""

_TRIES = 16


class GgufChatTemplate:
    """The template of one model; implements `engine.models.text.interfaces.ChatTemplate`.

    Safe from any thread; a render waits for the template's process, so it does not belong on the loop.

    A template that cannot be compiled leaves the model usable for plain completions: `fault` says why, and so does
    each `render`.
    """

    def __init__(
        self,
        source: str,
        tokenizer: GgufTokenizer,
        special_tokens: Mapping[str, str],
        window: int = sys.maxsize,
        process: TemplateProcess | None = None,
    ) -> None:
        """`special_tokens` are the variables such as `bos_token` that the template may name; `window` is the model's
        own, in tokens; `process` renders, by default one of this template's own."""
        self._source = source
        self._window = window
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._characters = min(max(4 * window * tokenizer.longest, LEAST_CHARACTERS), MOST_CHARACTERS)
        self._process = process or TemplateProcess()
        self.fault = self._compile()

    def _compile(self) -> str | None:
        """Why the template cannot be compiled; None where it can, or where no process could be started to try."""
        try:
            self._process.compile(self._source)
        except TemplateBroken as why:
            return f"the model's chat template {why}"
        except TemplateFault as why:
            return f"the model's chat template does not compile: it {why}"
        except TemplateBusy:
            pass
        return None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and tokenise `messages`; see `engine.models.text.interfaces.ChatTemplate`.

        `continue_final_message` leaves the last message, which must be the assistant's, open: the text ends with its
        content, without an end token, and `add_generation_prompt` has no say.
        """
        if self.fault is not None:
            raise _refused(self.fault)
        if not messages:
            raise _refused("messages is empty, at least one is needed")
        messages = [_with_objects(message) for message in messages]
        marks = _unused_characters([messages, extra], 2)
        safe_messages = self._defuse(messages, marks[0])
        safe_extra = self._defuse(extra or {}, marks[0])
        if continue_final_message:
            if messages[-1].get("role") != "assistant":
                raise _refused("continue_final_message needs the last message to be the assistant's")
            content = safe_messages[-1].get("content") or ""
            safe_messages[-1] = {**safe_messages[-1], "content": content + marks[1]}
        first_user = next((i for i, m in enumerate(safe_messages) if m.get("role") == "user"), None)
        rendered = self._run(
            Rendering(
                messages=safe_messages,
                opening=None if first_user is None else first_user + 1,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                variables={**self._special_tokens, **safe_extra},
                characters=self._characters,
            )
        )
        text = rendered.text
        if continue_final_message:
            end = text.rfind(marks[1])
            if end < 0:
                raise _refused("the model's chat template does not show the final message, so it cannot be continued")
            text = text[:end].replace(marks[1], "")
        check_text(text.replace(marks[0], ""), self._tokenizer, self._window, "messages")
        first_user_chars = 0
        if first_user is not None:
            first_user_chars = _opening_chars(text, rendered.opening, safe_messages[first_user])
        return self._tokenise(text, first_user_chars, marks[0])

    def _run(self, rendering: Rendering) -> Rendered:
        try:
            return self._process.render(self._source, rendering)
        except TemplateOverLimit as why:
            raise RequestError(
                f"the model's chat template {why}", status=400, code="template_limit", param="messages"
            ) from why
        except TemplateFault as why:
            raise _refused(f"the model's chat template {why}") from why
        except TemplateBusy as why:
            raise RequestError(str(why), status=503, code="template_busy", retry_after=5) from why

    def _tokenise(self, text: str, first_user_chars: int, mark: str) -> ChatPrompt:
        tokenizer = self._tokenizer
        ids: list[int] = []
        first_user_end = 0
        at = 0
        after_token = True
        for fragment in tokenizer.fragments(text, special=True):
            start, at = at, at + len(fragment.text)
            if fragment.token is None:
                found = _plain_ids(tokenizer, fragment.text.replace(mark, ""), after_token)
            else:
                found = [fragment.token]
            if at <= first_user_chars:
                first_user_end = len(ids) + len(found)
            elif start < first_user_chars:
                head = fragment.text[: first_user_chars - start].replace(mark, "")
                first_user_end = len(ids) + _common(_plain_ids(tokenizer, head, after_token), found)
            ids += found
            after_token = fragment.token is not None
        bos = tokenizer.bos_id
        if tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
            first_user_end += 1 if first_user_end else 0
        return ChatPrompt(tuple(ids), first_user_end)

    def _defuse(self, value: Any, mark: str) -> Any:
        """A copy of `value` with every control token's spelling broken by `mark`, in strings at any depth."""
        if isinstance(value, str):
            return self._tokenizer.control_spellings.broken(value, mark)
        if isinstance(value, Mapping):
            return {self._defuse(k, mark): self._defuse(v, mark) for k, v in value.items()}
        if isinstance(value, _Arguments):
            return (self._defuse(value.object, mark), self._defuse(value.text, mark))
        if isinstance(value, list | tuple):
            return [self._defuse(v, mark) for v in value]
        return value


@dataclass(frozen=True, slots=True)
class _Arguments:
    """A tool call's arguments as an object and as JSON text. Templates differ in which of the two they write."""

    object: Mapping[str, Any]
    text: str


def _with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message`, the arguments of its tool calls as `_Arguments` where they are an object or the JSON text of one.

    Before spellings are broken: JSON's escapes may hide one.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_call_with_object(call) for call in calls]}


def _call_with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    given = function.get("arguments") if isinstance(function, Mapping) else None
    try:
        if isinstance(given, str):
            found, text = json.loads(given), given
        else:
            found, text = given, json.dumps(given, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return call
    if not isinstance(found, Mapping) or function is None:
        return call
    return {**call, "function": {**function, "arguments": _Arguments(found, text)}}


def _opening_chars(text: str, opening: int | None, first_user: Mapping[str, Any]) -> int:
    """Characters of `text` up to the end of the first user message.

    Where the template shows the opening otherwise once more follows it (`opening` is None), the message's content is
    looked for; where that fails too, the whole text counts, so that nothing is taken for a continuation by mistake.
    """
    if opening is not None and opening <= len(text):
        return opening
    content = str(first_user.get("content") or "").strip()
    at = text.find(content) if content else -1
    return at + len(content) if at >= 0 else len(text)


def load_template(metadata: Metadata, tokenizer: GgufTokenizer, window: int) -> GgufChatTemplate | None:
    """The file's chat template for a model of that `window`, None where it has none.

    Raises DamagedModel where it is no text.
    """
    if "tokenizer.chat_template" not in metadata:
        return None
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {}
    for variable, name in names.items():
        key = f"tokenizer.ggml.{name}_token_id"
        # A template may add these to a text, so an absent one is empty rather than undefined.
        token = metadata.integer(key, high=tokenizer.vocab_size - 1) if key in metadata else None
        special[variable] = tokenizer.token_text(token) if token is not None else ""
    return GgufChatTemplate(metadata.text("tokenizer.chat_template"), tokenizer, special, window)


def warnings_of(tokenizer: GgufTokenizer, template: GgufChatTemplate | None) -> tuple[str, ...]:
    """What is wrong with the file's words, a sentence each."""
    broken = () if template is None or template.fault is None else (f"chat is refused: {template.fault}",)
    return (*tokenizer.warnings, *broken)


def _plain_ids(tokenizer: GgufTokenizer, text: str, after_token: bool) -> list[int]:
    """Ids of a stretch without control tokens; user-defined tokens that a mark had hidden are found again."""
    ids: list[int] = []
    for fragment in tokenizer.fragments(text, special=False):
        ids += tokenizer.encode_fragment(fragment, after_token=after_token)
        after_token = fragment.token is not None
    return ids


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _refused(message: str) -> RequestError:
    return RequestError(message, status=400, code="invalid_messages", param="messages")


def _unused_characters(values: Any, n: int) -> list[str]:
    """`n` characters that occur in no string of `values`. Raises RequestError(400) where none are found."""
    texts = []
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            # The characters that are looked for are none of these.
            if not value.isascii():
                texts.append(value)
        elif isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, _Arguments):
            pending += (value.object, value.text)
        elif isinstance(value, list | tuple):
            pending += value
    # Searching for one character takes milliseconds in megabytes; the set of all that occur would take seconds under
    # the interpreter's lock. Drawn at random, so that no text can be written to hold all that are tried.
    tried = (*_USUAL, *map(chr, random.sample(_SPARE, _TRIES)))
    found = list(itertools.islice((c for c in tried if not any(c in text for text in texts)), n))
    if len(found) < n:
        raise _refused("the messages use nearly every character that Unicode leaves unassigned; some are needed here")
    return found
