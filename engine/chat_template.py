"""The model's own chat template: renders a conversation, tokenises it, and keeps what clients write as text.

Templates see the globals that Hugging Face's chat templates rely on. A control token's spelling inside a message never
becomes that token: each such spelling is broken by a character that occurs nowhere in the conversation before the
template runs, and mended after the rendered text has been cut at the template's own control tokens. Conversations
without such spellings are rendered untouched.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.api import ChatPrompt
from engine.checks import check_text
from engine.request import RequestError
from engine.tokenizer import GgufTokenizer

_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template can raise on messages that it was not written for."""

_NONCHARACTERS = range(0xFDD0, 0xFDF0)
_PRIVATE = range(0xF0000, 0xFFFFE)


class GgufChatTemplate:
    """The template of one model; implements `engine.api.ChatTemplate`. Safe from any thread.

    A template that does not compile leaves the model usable for plain completions: each `render` says so.
    """

    def __init__(
        self, source: str, tokenizer: GgufTokenizer, special_tokens: Mapping[str, str], window: int = sys.maxsize
    ) -> None:
        """`special_tokens` are the variables such as `bos_token` that the template may name; `window` is the model's
        own, in tokens."""
        self._window = window
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            self._broken: str | None = f"the model's chat template does not compile: {error}"
        else:
            self._broken = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and tokenise `messages`; see `engine.api.ChatTemplate`.

        `continue_final_message` leaves the last message, which must be the assistant's, open: the text ends with its
        content, without an end token, and `add_generation_prompt` has no say.
        """
        if self._broken is not None:
            raise _refused(self._broken)
        if not messages:
            raise _refused("messages is empty, at least one is needed")
        marks = _unused_characters([messages, extra], 2)
        safe_messages = self._defuse(messages, marks[0])
        safe_extra = self._defuse(extra or {}, marks[0])
        if continue_final_message:
            if messages[-1].get("role") != "assistant":
                raise _refused("continue_final_message needs the last message to be the assistant's")
            content = safe_messages[-1].get("content") or ""
            safe_messages[-1] = {**safe_messages[-1], "content": content + marks[1]}
        prompt = add_generation_prompt and not continue_final_message
        text = self._run(safe_messages, safe_extra, prompt)
        if continue_final_message:
            end = text.rfind(marks[1])
            if end < 0:
                raise _refused("the model's chat template does not show the final message, so it cannot be continued")
            text = text[:end].replace(marks[1], "")
        check_text(text.replace(marks[0], ""), self._tokenizer, self._window, "messages")
        return self._tokenise(text, self._first_user_chars(safe_messages, safe_extra, text), marks[0])

    def _run(self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any], prompt: bool) -> str:
        try:
            return self._template.render(
                {"messages": messages, "add_generation_prompt": prompt, **self._special_tokens, **extra}
            )
        except _FAULTS as error:
            raise _refused(f"the model's chat template refuses these messages: {error}") from error

    def _first_user_chars(self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any], text: str) -> int:
        """Characters of `text` up to the end of the first user message.

        Where the template shows the opening otherwise once more follows it, the message's content is looked for;
        where that fails too, the whole text counts, so that nothing is taken for a continuation by mistake.
        """
        first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), None)
        if first is None:
            return 0
        try:
            opening = self._run(messages[: first + 1], extra, False)
        except RequestError:
            opening = ""
        if opening and text.startswith(opening):
            return len(opening)
        content = str(messages[first].get("content") or "").strip()
        at = text.find(content) if content else -1
        return at + len(content) if at >= 0 else len(text)

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
        pattern = self._tokenizer.control_spellings
        if isinstance(value, str):
            # A broken spelling can leave another that overlapped it.
            while pattern is not None and pattern.search(value):
                value = pattern.sub(lambda m: m[0][0] + mark + m[0][1:], value)
            return value
        if isinstance(value, Mapping):
            return {self._defuse(k, mark): self._defuse(v, mark) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._defuse(v, mark) for v in value]
        return value


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
    """`n` characters that no text uses and that occur in no string of `values`."""
    used: set[str] = set()
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if not value.isascii():
                used.update(value)
        elif isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            pending += value
    free = (c for codes in (_NONCHARACTERS, _PRIVATE) for c in map(chr, codes) if c not in used)
    return [c for c, _ in zip(free, range(n), strict=False)]


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it shows its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)
