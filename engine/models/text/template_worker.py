"""The program of the template process: compiles a chat template in Jinja's sandbox and renders conversations with it.

`template_process` starts it, limits it and ends it. It is run as a file and imports nothing of this project, so
that it starts in a fraction of a second and shares no state with the engine. Both ends speak over the socket that is
its standard input: an 8-byte length, then a marshalled request; an 8-byte length, then one of the answers' letters and
the answer in UTF-8. A request carries the template's source, so that a process started anew needs no introduction.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import marshal
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH = struct.Struct("<Q")
DONE, BROKEN, REFUSED, LIMITED = b"D", b"B", b"R", b"L"
"""Answers: rendered; does not compile; the template refuses the messages; over a limit."""

MEMORY_EXIT = 3
"""The exit code where memory ran out outside a render."""

MESSAGE_CHARACTERS = 500
MEBIBYTE = 1 << 20


class OverLimit(Exception):
    """The template went over a limit; the message ends the sentence 'the chat template ...'."""


class Arguments(dict[str, Any]):
    """A tool call's arguments: the object that most templates expect, and its JSON text where one writes a string."""

    def __init__(self, value: dict[str, Any], text: str) -> None:
        super().__init__(value)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it shows its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja with the settings, filters and globals that Hugging Face's chat templates rely on."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _strftime_now
    del made.globals["lipsum"]
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


class Worker:
    """Answers requests one after another. The template compiled last is kept."""

    def __init__(self, cpu_s: float, memory_mib: int) -> None:
        self._cpu_s = cpu_s
        self._memory = f"needed more than {memory_mib} MiB of memory"
        self._environment = environment()
        self._source: str | None = None
        self._template: Template | None = None

    def answer(self, request: dict[str, Any]) -> tuple[bytes, str]:
        """One answer's letter and text. The kernel ends the process where the work takes too much processor time: no
        Python code could, while one operation of C code runs."""
        signal.setitimer(signal.ITIMER_PROF, self._cpu_s)
        try:
            if (why := self._compile(request["source"])) is not None:
                return why
            return self._render(request) if "messages" in request else (DONE, "")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _compile(self, source: str) -> tuple[bytes, str] | None:
        if source == self._source:
            return None
        self._source = self._template = None
        try:
            self._template = self._environment.from_string(source)
        except MemoryError:
            return LIMITED, self._memory
        except RecursionError:
            return BROKEN, "it nests too deep"
        # A template can make the compiler raise anything.
        except Exception as error:  # noqa: BLE001
            return BROKEN, _shown(error)
        self._source = source
        return None

    def _render(self, request: dict[str, Any]) -> tuple[bytes, str]:
        """`messages` rendered, behind the length of the part that the first of them render to where the text starts
        with it, -1 where not."""
        messages = [_message(message) for message in request["messages"]]
        opening: int | None = request["opening"]
        try:
            text = self._text(request, messages, request["add_generation_prompt"])
            if opening is None:
                return DONE, f"-1 {text}"
            try:
                start = self._text(request, messages[:opening], False)
            except (MemoryError, OverLimit):
                raise
            # Templates refuse a part of a conversation for many reasons.
            except Exception:  # noqa: BLE001
                start = ""
            return DONE, f"{len(start) if start and text.startswith(start) else -1} {text}"
        except MemoryError:
            return LIMITED, self._memory
        except OverLimit as error:
            return LIMITED, str(error)
        except RecursionError:
            return REFUSED, "it calls itself too deep"
        # Templates raise anything on messages that they were not written for.
        except Exception as error:  # noqa: BLE001
            return REFUSED, _shown(error)

    def _text(self, request: dict[str, Any], messages: list[Any], add_generation_prompt: bool) -> str:
        assert self._template is not None
        left = limit = request["characters"]
        variables = {
            # Hugging Face passes both, None where there are none: `tools is not none` must be false then.
            "tools": None,
            "documents": None,
            **request["variables"],
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces = []
        for piece in self._template.generate(variables):
            left -= len(piece)
            if left < 0:
                raise OverLimit(f"made more than {limit:,} characters, more than any prompt that fits")
            pieces.append(piece)
        return "".join(pieces)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with each pair of a tool call's arguments, an object and its text, made one value."""
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if function is not None and isinstance(function.get("arguments"), tuple):
            function["arguments"] = Arguments(*function["arguments"])
    return message


def _shown(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:MESSAGE_CHARACTERS]


def _limit_process(memory_mib: int) -> None:
    """Less than the engine may have, and the first to go where memory runs out."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * MEBIBYTE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def main(cpu_s: str, memory_mib: str) -> None:
    """Answer until the other end closes the socket."""
    for number in (signal.SIGPROF, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _limit_process(int(memory_mib))
    worker = Worker(float(cpu_s), int(memory_mib))
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        try:
            while head := stream.read(LENGTH.size):
                letter, text = worker.answer(marshal.loads(stream.read(LENGTH.unpack(head)[0])))
                answer = letter + text.encode(errors="surrogatepass")
                stream.write(LENGTH.pack(len(answer)) + answer)
                stream.flush()
        except MemoryError:
            os._exit(MEMORY_EXIT)


if __name__ == "__main__":
    main(*sys.argv[1:])
