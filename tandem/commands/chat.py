"""`tandem chat`: talk to the running engine, in turns or with one prompt."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
import typer

from tandem import output
from tandem.client.chat_stream import AnswerEnd, ChatMessage, ChatRequest, TextPart, Usage, WaitNote, open_chat
from tandem.client.interrupt import Interrupt
from tandem.client.register import address_of
from tandem.client.wire import Address
from tandem.commands.options import UrlOption
from tandem.exits import CommandError, Exit

app = typer.Typer(add_completion=False, rich_markup_mode=None)

HELP = "/new starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


class ChatAnswer(msgspec.Struct):
    """The part of an answer that arrived so far, and what `--json` prints. `finish` is empty until it is complete."""

    text: str = ""
    finish: str = ""
    usage: Usage | None = None


@app.command()
def chat(
    prompt: Annotated[str | None, typer.Argument(help="One prompt; without it, a conversation.")] = None,
    *,
    url: UrlOption = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="X", min=0, help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Fixes sampling.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (with one prompt).")] = False,
) -> None:
    """Talk to the running engine. A prompt may also come through a pipe."""
    address = address_of(url)
    options = ChatRequest((), max_tokens=max_tokens, temperature=temperature, seed=seed, client="tandem-chat")
    session = ChatSession(address, options, system)
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is None:
        if json:
            raise CommandError("--json needs a prompt", Exit.USAGE)
        with session.interrupt.held():
            session.run()
        return
    if not prompt.strip():
        raise CommandError("the prompt is empty", Exit.USAGE)
    with session.interrupt.held():
        reply = session.say(prompt, shown=not json)
    if json:
        output.emit_json(reply)
    if not reply.finish:
        raise typer.Exit(Exit.INTERRUPTED)


@dataclass(slots=True)
class ChatSession:
    """A conversation: its turns so far, and the engine and the request options that answer them."""

    address: Address
    options: ChatRequest
    system: str | None
    turns: list[ChatMessage] = field(default_factory=list)
    interrupt: Interrupt = field(default_factory=Interrupt)

    def run(self) -> None:
        """Read turns from the terminal until the person leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 -- gives input() its line editing
        output.note(f"{self.address.url}: {HELP}")
        while True:
            try:
                self.interrupt.release()
                line = input("> ").strip()
                self.interrupt.hold()
            except EOFError:
                output.note("")
                return
            except KeyboardInterrupt:
                self.interrupt.hold()
                output.note("")
                continue
            if line in ("/exit", "/quit"):
                return
            if line == "/new":
                self.turns.clear()
                output.note("a new conversation")
            elif line.startswith("/"):
                output.note(HELP)
            elif line:
                try:
                    self.say(line, shown=True)
                except CommandError as why:
                    output.error(why.message)

    def say(self, text: str, *, shown: bool) -> ChatAnswer:
        """Send one turn and stream its answer. Ctrl-C cancels the answer and keeps the text that arrived. A turn that
        fails leaves the conversation unchanged."""
        turn = ChatMessage("user", text)
        head = [ChatMessage("system", self.system)] if self.system else []
        question = replace(self.options, messages=(*head, *self.turns, turn))
        reply = ChatAnswer()
        if not self.interrupt.run(_stream(self.address, question, reply, shown=shown)):
            if shown:
                output.emit("")
            output.note("stopped")
        self.turns += [turn, ChatMessage("assistant", reply.text)]
        return reply


async def _stream(address: Address, question: ChatRequest, reply: ChatAnswer, *, shown: bool) -> None:
    waiting = WaitLine()
    async with open_chat(address, question) as answers:
        async for answer in answers:
            match answer:
                case WaitNote(text):
                    waiting.show(text)
                case TextPart(text):
                    waiting.clear()
                    reply.text += text
                    if shown:
                        output.emit(text, end="")
                case AnswerEnd(finish, usage, cut):
                    waiting.clear()
                    reply.finish, reply.usage = finish, usage
                    if shown:
                        output.emit("")
                    if cut:
                        output.note(f"max_tokens {cut}: the room that was left")


class WaitLine:
    """One line on the terminal that says what an answer waits for. It is overwritten, and cleared at the first text."""

    def __init__(self) -> None:
        self._width = 0
        self._on = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._on:
            self.clear()
            shown = "".join(c for c in text if c.isprintable())[:78]
            output.note(shown, end="")
            self._width = len(shown)

    def clear(self) -> None:
        if self._width:
            output.note(f"\r{' ' * self._width}\r", end="")
            self._width = 0
